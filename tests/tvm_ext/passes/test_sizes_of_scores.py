"""Attention whose mask has an open size of its own, and heads behind views, beside ONNX Runtime."""

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from thoroughness import one_in
from tvm import relax

import tvm_ext
from tvm_ext.errors import TvmExtError
from tvm_ext.passes.attention_operands import find_operand
from tvm_ext.relay_passes.binding_rewriter import GraphView

DEPTH = 8
op = relax.op


def decoder(mask, heads=4, shared=2) -> onnx.ModelProto:
    """Attention over keys and values of earlier tokens, whose mask has the size ``total``."""
    group = heads // shared
    nodes, arrays = [], []

    def add(name, *inputs, into="", **attributes):
        result = into or f"v{len(nodes)}"
        nodes.append(helper.make_node(name, list(inputs), [result], **attributes))
        return result

    def stored(values, dtype="int64"):
        arrays.append(numpy_helper.from_array(np.array(values, dtype), f"c{len(arrays)}"))
        return arrays[-1].name

    def repeated(x):
        apart = add("Unsqueeze", x, stored([2]))
        many = add("Expand", apart, stored([1, 1, group, 1, 1]))
        return add("Reshape", many, stored([0, heads, -1, DEPTH]))

    keys = repeated(add("Concat", "past_key", "key", into="present_key", axis=2))
    values = repeated(add("Concat", "past_value", "value", into="present_value", axis=2))
    scores = add("MatMul", "query", add("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = add("Mul", scores, stored(DEPTH**-0.5, "float32"))
    if mask == "added behind a cap":
        cap = stored(0.5, "float32")
        scores = add("Mul", add("Tanh", add("Div", scores, cap)), cap)
    if mask.startswith("added"):
        scores = add("Add", scores, "mask")
    else:
        hidden = add("Less", "mask", stored(0, "float32"))
        scores = add("Where", hidden, stored(-1e30, "float32"), scores)
    weights = add("Softmax", scores, axis=-1)
    add("MatMul", weights, values, into="mixed")

    def value(name, *shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    past = [value(f"past_{n}", "batch", shared, "past", DEPTH) for n in ("key", "value")]
    new = [value(n, "batch", shared, "length", DEPTH) for n in ("key", "value")]
    inputs = [value("query", "batch", heads, "length", DEPTH), *new, *past]
    inputs.append(value("mask", "batch", 1, "length", "total"))
    outputs = [value("mixed", "batch", heads, "length", DEPTH)]
    outputs += [value(f"present_{n}", "batch", shared, "all", DEPTH) for n in ("key", "value")]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def fed(batch, length, past, total):
    random = np.random.default_rng([batch, length, past])

    def drawn(*shape):
        return random.standard_normal(shape).astype("float32")

    found = {"query": drawn(batch, 4, length, DEPTH)}
    for name in ("key", "value"):
        found[name] = drawn(batch, 2, length, DEPTH)
        found[f"past_{name}"] = drawn(batch, 2, past, DEPTH)
    mask = np.where(random.random((batch, 1, length, total)) < 0.4, -1e30, 0).astype("float32")
    mask[-1, 0, -1] = -1e30
    return {**found, "mask": mask}


@pytest.mark.extended
@pytest.mark.parametrize("mask", one_in(3, ["added", "chosen", "added behind a cap"]))
def test_a_mask_of_its_own_size_is_read_by_one_kernel(mask):
    onnxruntime = pytest.importorskip("onnxruntime")
    proto = decoder(mask)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    compiled = tvm_ext.compile(proto)
    assert "attention" in {kernel.schedule for kernel in compiled.report.kernels}
    assert not any("softmax" in kernel.name for kernel in compiled.report.kernels)
    for batch, length, past in [(1, 1, 0), (1, 5, 0), (2, 1, 7), (2, 3, 4), (1, 9, 20)]:
        for total in {past + length, 1}:
            given = fed(batch, length, past, total)
            wanted = session.run(["mixed"], given)[0]
            found = compiled.run(given)["mixed"]
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.extended
def test_a_mask_of_another_size_is_refused():
    compiled = tvm_ext.compile(decoder("added"))
    with pytest.raises(TvmExtError):
        compiled.run(fed(1, 3, 4, 5))


def operand(steps, shape):
    """What is behind the keys ``steps(x)``, of ``[batch, heads, elements, positions]``."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            last = steps(builder.emit, x)
            result = builder.emit_output(op.add(last, last))
        builder.emit_func_output(result)
    return find_operand(GraphView(builder.get()["main"]), last, "bhds"), x


def one_axis_of_batch_and_heads(emit, x):
    """As PyTorch's exporter writes it: transposed with batch and heads as one axis."""
    apart = emit(op.broadcast_to(emit(op.expand_dims(x, 2)), (2, 3, 4, 5, 8)))
    joined = emit(op.permute_dims(emit(op.reshape(apart, (24, 5, 8))), [0, 2, 1]))
    return emit(op.reshape(joined, (2, 12, 8, 5)))


def transposed_first(emit, x):
    apart = emit(op.expand_dims(emit(op.permute_dims(x, [0, 1, 3, 2])), 2))
    return emit(op.reshape(emit(op.broadcast_to(apart, (2, 3, 4, 8, 5))), (2, 12, 8, 5)))


def in_another_order(emit, x):
    """All heads, four times."""
    apart = emit(op.broadcast_to(emit(op.expand_dims(x, 1)), (2, 4, 3, 5, 8)))
    return emit(op.permute_dims(emit(op.reshape(apart, (2, 12, 5, 8))), [0, 1, 3, 2]))


@pytest.mark.parametrize("steps", [one_axis_of_batch_and_heads, transposed_first])
def test_repeated_heads_are_found_behind_views(steps):
    found, x = operand(steps, (2, 3, 5, 8))
    assert found.value.same_as(x)
    assert (found.axes, found.repeats) == ("bhsd", 4)


def test_heads_that_are_repeated_in_another_order_stay():
    found, x = operand(in_another_order, (2, 3, 5, 8))
    assert not found.value.same_as(x)
    assert (found.axes, found.repeats) == ("bhsd", 1)


def test_one_head_of_an_open_length():
    length, past = tvm.tirx.Var("length", "int64"), tvm.tirx.Var("past", "int64")

    def steps(emit, x):
        apart = emit(op.expand_dims(x, 2))
        many = emit(op.broadcast_to(apart, (2, 1, 3, past + length, 8)))
        return emit(op.permute_dims(emit(op.reshape(many, (2, 3, length + past, 8))), [0, 1, 3, 2]))

    found, x = operand(steps, (2, 1, past + length, 8))
    assert found.value.same_as(x)
    assert (found.axes, found.repeats) == ("bhsd", 3)
