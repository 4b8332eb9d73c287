"""Which kernel calls make the tensors that others read."""

from wafer_models import WIDTH, layers, layers_cost, turned

from tvm_ext.wafer.dataflow import INPUT
from tvm_ext.wafer.model_cost import model_cost


def test_calls_in_order_with_what_they_read_and_make():
    flow = layers_cost().flow
    calls = flow.calls
    assert [call.position for call in calls] == list(range(len(calls)))
    (x,), (y,) = flow.inputs, flow.outputs
    assert (x.shape, x.element_bytes, x.bytes, x.producer) == ((16, WIDTH), 4, 2048, INPUT)
    assert calls[0].operands[0].key == x.key
    assert calls[-1].results[0].key == y.key
    made = {tensor.key: call.position for call in calls for tensor in call.results}
    for call in calls:
        for tensor in call.operands:
            if tensor.key in made:
                assert made[tensor.key] == tensor.producer < call.position
    # The first result is read by the second product and by the last addition.
    first = calls[0].results[0].key
    readers = [call.position for call in calls if first in {one.key for one in call.operands}]
    assert len(readers) == 2


def test_weights_are_told_apart():
    calls = layers_cost().flow.calls
    weights = [tensor for call in calls for tensor in call.operands if tensor.is_constant]
    assert len({tensor.key for tensor in weights}) == 3
    assert {tensor.shape for tensor in weights} == {(WIDTH, WIDTH)}


def test_one_weight_of_two_products_is_one_tensor():
    shared = layers(2)
    shared.graph.node[2].input[1] = "w0"
    calls = model_cost(shared, "mesh16").flow.calls
    weights = [tensor.key for call in calls for tensor in call.operands if tensor.is_constant]
    assert len(weights) == 2
    assert len(set(weights)) == 1


def test_a_view_is_the_same_tensor_in_another_shape():
    calls = model_cost(turned(), "mesh16").flow.calls
    made = next(call.results[0] for call in calls if call.results[0].shape == (8, 12))
    read = next(one for call in calls for one in call.operands if one.shape == (16, 6))
    assert made.key == read.key
    assert read.producer == made.producer
