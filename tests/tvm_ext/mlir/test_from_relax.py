"""Graphs of models in MLIR: their numbers beside ONNX Runtime, and what has no form there."""

import numpy as np
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper
from small_models import mlp, model, node, rand, self_attention, value
from thoroughness import one_in
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_ext.mlir import MlirError
from tvm_ext.mlir.execution import CompiledGraph
from tvm_ext.mlir.from_relax import convert_graph
from tvm_ext.mlir.model_kernels import KernelsRequest, model_graph
from tvm_ext.mlir.model_text import counted_operations
from tvm_ext.passes.runner import PassRunner

# As the graph is imported: layouts and fused operators have other tests.
PLAIN = "O1"


def converted(source, opt_level=PLAIN, **shapes):
    request = KernelsRequest(input_shapes=shapes, opt_level=opt_level)
    return convert_graph(model_graph(source, request).mod)


def convolutions():
    """Two convolutions, one of them depthwise, pooling, a skip connection and a softmax."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Conv", ["c", "d"], ["e"], pads=[1, 1, 1, 1], group=8),
        node("Add", ["c", "e"], ["s"]),
        node("MaxPool", ["s"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["p"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Softmax", ["f"], ["y"]),
    ]
    weights = {"w": rand(8, 3, 3, 3), "d": rand(8, 1, 3, 3)}
    return model(nodes, [value("x", [1, 3, 10, 10])], [value("y", [1, 8])], **weights)


def attention():
    return model(self_attention(), [value("x", [2, 5, 8])], [value("y", [2, 5, 8])])


def branches():
    """The negative of x, or twice x, by the sign of its sum."""
    positive = helper.make_graph([node("Add", ["x", "x"], ["t"])], "t", [], [value("t", [4])])
    negative = helper.make_graph([node("Neg", ["x"], ["e"])], "e", [], [value("e", [4])])
    nodes = [
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["c"]),
        node("If", ["c"], ["y"], then_branch=positive, else_branch=negative),
    ]
    zero = np.float32(0)
    return model(nodes, [value("x", [4])], [value("y", [4])], zero=zero)


MODELS = {
    "mlp": (lambda: mlp(5), rand(5, 6)),
    "convolutions": (convolutions, rand(1, 3, 10, 10)),
    "attention": (attention, rand(2, 5, 8)),
    "then": (branches, np.abs(rand(4))),
    "else": (branches, -np.abs(rand(4))),
}


@pytest.mark.extended
@pytest.mark.parametrize("opt_level", one_in(2, ["O3", "O1"]))
@pytest.mark.parametrize("name", MODELS)
def test_numbers_are_those_of_onnx_runtime(name, opt_level):
    make, x = MODELS[name]
    source = make()
    session = onnxruntime.InferenceSession(source.SerializeToString())
    found = CompiledGraph(converted(source, opt_level))(x)
    expected = session.run(None, {"x": x})
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.reshape(theirs.shape), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "operations"),
    [
        ("mlp", {"linalg.matmul"}),
        ("convolutions", {"linalg.conv_2d_nchw_fchw", "linalg.fill"}),
        ("attention", {"linalg.batch_matmul", "linalg.transpose", "linalg.broadcast"}),
    ],
)
def test_operations_have_their_names(name, operations):
    assert operations <= set(counted_operations(converted(MODELS[name][0]()).module))


def test_results_are_written_to_arrays_with_gaps():
    graph = CompiledGraph(converted(mlp(5)))
    x = rand(5, 6)
    plain = graph(x)
    turned = [np.zeros(one.shape[::-1], one.dtype).T for one in plain]
    spread = [np.zeros((one.shape[0] * 2, *one.shape[1:]), one.dtype) for one in plain]
    graph.run_into([x], turned)
    graph.run_into([np.asfortranarray(x)], [one[::2] for one in spread])
    for one, by_columns, rows in zip(plain, turned, spread, strict=True):
        np.testing.assert_array_equal(by_columns, one)
        np.testing.assert_array_equal(rows[::2], one)
        assert not rows[1::2].any()


@pytest.mark.extended
@pytest.mark.parametrize("wrong", ["shape", "type", "count", "locked"])
def test_arrays_that_are_no_results_are_refused(wrong):
    graph = CompiledGraph(converted(mlp(5)))
    results = graph(rand(5, 6))
    if wrong == "shape":
        results[0] = results[0][1:]
    elif wrong == "type":
        results[0] = results[0].astype(np.float64)
    elif wrong == "count":
        results.pop()
    else:
        results[0].flags.writeable = False
    with pytest.raises(MlirError, match=r"expected f32 \[5, 3\], f32 \[5, 4\]"):
        graph.run_into([rand(5, 6)], results)


def test_a_symbolic_size_is_a_size_that_the_input_says():
    graph = converted(mlp())
    assert "tensor<?x6xf32>" in str(graph.module)
    assert "tensor.dim" in str(graph.module)
    with pytest.raises(MlirError, match="give input shapes"):
        CompiledGraph(graph)


def test_large_constants_are_parameters():
    graph = converted(mlp())
    assert sorted(one.shape for one in graph.weights) == [(6, 4)]
    assert "dense<" in str(graph.module)


@pytest.mark.extended
def test_what_has_no_form_is_a_function_without_a_body():
    step = helper.make_graph(
        [node("Add", ["v", "v"], ["w"]), node("Identity", ["c"], ["d"])],
        "step",
        [value("i", [], TensorProto.INT64), value("c", [], TensorProto.BOOL), value("v", [4])],
        [value("d", [], TensorProto.BOOL), value("w", [4])],
    )
    loop = node("Loop", ["n", "", "x"], ["y"], name="repeat", body=step)
    nodes = [loop, node("Neg", ["y"], ["z"])]
    inputs = [value("x", [4]), value("n", [], TensorProto.INT64)]
    graph = converted(model(nodes, inputs, [value("z", [4])]))
    (refused,) = [one for one in graph.operators if one.form == "not converted"]
    assert "repeat" in refused.name
    assert "loop" in refused.reason
    assert "func.func private @not_converted" in str(graph.module)
    assert not graph.is_whole


# A value of no type in MLIR refuses what has begun to be written: a branch, or a called function.
WEIGHT = np.arange(64, dtype=np.float32)


@I.ir_module
class HalfABranch:
    @R.function
    def main(x: R.Tensor((64,), "float32"), c: R.Tensor((), "bool")) -> R.Tensor((64,), "float32"):
        first = R.call_pure_packed("one", x, ty_args=R.Tensor((64,), "float32"))
        if c:
            named = R.call_pure_packed("two", first, R.const(WEIGHT), ty_args=x.ty)
            flat = R.reshape(R.const(WEIGHT), (8, 8))
            kept = R.call_pure_packed("keep", named, flat, ty_args=R.Object())
            y = R.call_pure_packed("three", kept, ty_args=R.Tensor((64,), "float32"))
        else:
            y = R.call_pure_packed("four", first, ty_args=R.Tensor((64,), "float32"))
        return R.call_pure_packed("five", y, ty_args=R.Tensor((64,), "float32"))


@I.ir_module
class HalfAFunction:
    @R.function
    def main(x: R.Tensor((64,), "float32")) -> R.Tensor((64,), "float32"):
        first = HalfAFunction.inner(x)
        return HalfAFunction.inner(first)

    @R.function(private=True)
    def inner(x: R.Tensor((64,), "float32")) -> R.Tensor((64,), "float32"):
        named = R.call_pure_packed("two", x, ty_args=R.Tensor((64,), "float32"))
        kept = R.call_pure_packed("keep", named, ty_args=R.Object())
        return R.call_pure_packed("three", kept, ty_args=R.Tensor((64,), "float32"))


@pytest.mark.parametrize(
    ("mod", "names"),
    [
        (HalfABranch, ["relax.call_pure_packed", "if", "relax.call_pure_packed"]),
        (HalfAFunction, ["inner", "inner"]),
    ],
)
def test_what_is_refused_half_way_leaves_nothing_behind(mod, names):
    graph = convert_graph(mod)
    assert [one.name for one in graph.operators] == names
    assert {one.form for one in graph.operators} == {"not converted"}
    assert graph.weights == ()
    text = str(graph.module)
    assert text.count("call @not_converted") == text.count("func.func private") == len(names)
    assert "scf.if" not in text
    assert "tensor.reshape" not in text


def test_a_constant_is_read_once_however_often_it_is_used(monkeypatch):
    nodes = [node("Add", ["x", "w"], ["a"]), node("Mul", ["a", "w"], ["y"])]
    source = model(nodes, [value("x", [64])], [value("y", [64])], w=WEIGHT)
    found = model_graph(source, KernelsRequest(opt_level=PLAIN))
    read = []
    numpy = tvm.runtime.Tensor.numpy
    monkeypatch.setattr(tvm.runtime.Tensor, "numpy", lambda one: read.append(one) or numpy(one))
    graph = convert_graph(found.mod)
    assert len(read) == 1
    (weight,) = graph.weights
    np.testing.assert_array_equal(weight, WEIGHT)


def test_a_graph_goes_through_each_pass_once(monkeypatch):
    ran = []
    run = PassRunner.run
    monkeypatch.setattr(
        PassRunner,
        "run",
        lambda self, steps, *rest, **more: ran.extend(steps) or run(self, steps, *rest, **more),
    )
    model_graph(mlp(5), KernelsRequest())
    names = [step.entry.name for step in ran]
    assert names.count("LegalizeOps") == 1
    assert not {"FuseOperators", "FuseTIR", "CheckBounds"} & set(names)
