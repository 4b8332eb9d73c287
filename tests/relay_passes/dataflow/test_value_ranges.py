"""Every number that a model computes lies in the range that was found for it."""

import numpy as np
import pytest
from analysed_models import computed, graphs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import model, node, value
from tvm import relax, tirx

from tvm_ext.onnx_frontend import import_model
from tvm_ext.relay_passes.dataflow.interval import of_array
from tvm_ext.relay_passes.dataflow.value_ranges import value_ranges

op, nn = relax.op, relax.op.nn
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-40, -1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan, 88.8]
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def outputs(mod, **arguments):
    found = value_ranges(mod, **arguments).results(mod.get_global_var("main"))
    return found if isinstance(found, tuple) else (found,)


@given(graphs(), st.lists(st.sampled_from(SPECIAL), min_size=9, max_size=9))
@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
def test_ranges_hold_for_any_input(proto, numbers):
    x = np.array(numbers, "float32").reshape(3, 3)
    assert_inside(proto, x, outputs(import_model(proto).mod))


@given(graphs(), st.lists(st.floats(-2, 3, width=32), min_size=9, max_size=9))
@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
def test_ranges_hold_for_inputs_that_keep_a_promise(proto, numbers):
    x = np.array(numbers, "float32").reshape(3, 3)
    assert_inside(proto, x, outputs(import_model(proto).mod, inputs={"x": (-2.0, 3.0)}))


def assert_inside(proto, x, ranges):
    for info, array, found in zip(proto.graph.output, computed(proto, x), ranges, strict=True):
        actual = of_array(array)
        if actual is None:
            assert found.may_be_nan
            continue
        shown = f"{info.name}: {actual} outside of {found}"
        assert actual.low >= found.low, shown
        assert actual.high <= found.high, shown
        assert found.may_be_nan or not actual.may_be_nan, shown
        assert found.may_be_negative_zero or not actual.may_be_negative_zero, shown
        assert actual.is_integral or not found.is_integral, shown


def of(emit_value, *types, **arguments):
    """The range of a value of parameters with these types."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", ty) for i, ty in enumerate(types)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(emit_value(builder.emit, *params))
        builder.emit_func_output(result)
    (found,) = outputs(builder.get(), **arguments)
    return found


def tensor(*shape, dtype="float32"):
    return relax.TensorType(shape, dtype)


N = tirx.Var("n", "int64")


@pytest.mark.parametrize(
    ("emit_value", "low", "high"),
    [
        (lambda emit, x: nn.softmax(x), 0, 1.001),
        (lambda emit, x: op.sigmoid(x), 0, 1.001),
        (lambda emit, x: op.clip(x, 0, 6), 0, 6),
        (lambda emit, x: op.sum(emit(op.clip(x, 0, 2)), axis=[1]), 0, 6.0001),
        (lambda emit, x: op.multiply(x, x), 0, np.inf),
        (lambda emit, x: op.power(x, relax.const(2.0)), 0, np.inf),
        (lambda emit, x: op.matmul(emit(op.clip(x, 0, 1)), relax.const(np.eye(3, dtype="float32"))),
         0, 3.0001),
        (lambda emit, x: op.shape_to_tensor(emit(op.shape_of(x))), 0, 2**63),
        (lambda emit, x: op.astype(emit(op.clip(x, 0, 6)), "uint8"), 0, 255),
        (lambda emit, x: op.where(emit(op.less(x, x)), op.abs(x), emit(nn.relu(x))), 0, np.inf),
    ],
)  # fmt: skip
def test_operators(emit_value, low, high):
    found = of(emit_value, tensor(N, 3))
    assert found.low >= low
    assert found.high <= high


def test_sizes_of_a_run_have_bounds():
    found = of(
        lambda emit, x: op.shape_to_tensor(emit(op.shape_of(x))),
        tensor(N, 3),
        sizes={"n": (1, 8)},
    )
    assert (found.low, found.high) == (1, 8)


def test_a_mean_of_no_elements_is_nan():
    bounded = {"inputs": {"x0": (0.0, 1.0)}}
    assert of(lambda emit, x: op.mean(x, axis=[0]), tensor(N, 3), **bounded).may_be_nan
    assert not of(lambda emit, x: op.mean(x, axis=[1]), tensor(N, 3), **bounded).may_be_nan


def test_a_pool_may_lie_on_its_padding():
    def pooled(emit, x):
        return nn.max_pool2d(emit(nn.relu(x)), pool_size=(2, 2), padding=(2, 2, 2, 2))

    assert of(pooled, tensor(1, 1, 4, 4)).low == -np.inf


def test_weights_bound_a_convolution():
    weight = np.full((2, 1, 3, 3), 0.5, "float32")
    nodes = [node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])]
    proto = model(nodes, [value("x", [1, 1, 4, 4])], [value("y", [1, 2, 4, 4])], w=weight)
    (found,) = outputs(import_model(proto).mod, inputs={"x": (0.0, 1.0)})
    assert 4.5 <= found.high < 4.6
    assert -0.1 < found.low <= 0


def test_a_batch_normalisation_keeps_bounds():
    draw = np.random.default_rng(0)
    statistics = {name: draw.uniform(0.5, 2, 2).astype("float32") for name in "gbmv"}
    nodes = [node("BatchNormalization", ["x", *"gbmv"], ["y"], name="y")]
    shape = [1, 2, 3, 3]
    proto = model(nodes, [value("x", shape)], [value("y", shape)], **statistics)
    found = outputs(import_model(proto).mod, inputs={"x": (-2.0, 3.0)})
    assert found[0].is_number
    assert_inside(proto, draw.uniform(-2, 3, shape).astype("float32"), found)
