"""Reshapes of sizes that a run decides: views of memory, which nothing else writes meanwhile."""

import numpy as np
import onnx
import pytest
import tvm
from operator_models import by_runtime
from small_models import model, node, rand, value
from thoroughness import one_in
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T
from unoptimised import HOST

import tvm_ext
from tvm_ext.compiler.graph_analysis import operator_counts
from tvm_ext.passes import registry
from tvm_ext.relay_passes.fresh_outputs import with_fresh_outputs
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernels


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def lowered(mod: tvm.IRModule) -> tvm.IRModule:
    names = ("LegalizeOps", "AnnotateTIROpPattern", "FuseOperators", "FuseTIR")
    passes = [registry.get(name).make({}) for name in (*names, "RewriteDataflowReshape")]
    return tvm.transform.Sequential(passes)(mod)


@I.ir_module
class Reshapes:
    @R.function
    def main(x: R.Tensor(("b", 4, "h", "w"), "float32")):
        b, h, w = T.int64(), T.int64(), T.int64()
        with R.dataflow():
            pixels = R.reshape(x, (b, 4, h * w))
            turned = R.permute_dims(pixels, [0, 2, 1])
            heads = R.reshape(turned, (b, h * w, 2, 2))
            flat = R.flatten(R.exp(heads))
            R.output(flat)
        return flat


def test_symbolic_reshapes_are_no_kernels() -> None:
    mod = lowered(Reshapes)
    assert operator_counts(mod) == {"reshape": 3, "call_tir": 2}
    kernels = {str(var.name_hint) for var in mod.functions if var.name_hint != "main"}
    assert kernels == {"transpose", "tir_exp"}


@pytest.mark.extended
def test_a_kernel_that_tvm_cannot_divide_is_no_reshape() -> None:
    nodes = [
        node("ConvTranspose", ["x", "w"], ["c"], strides=[3, 2], dilations=[2, 2]),
        node("Conv", ["c", "v"], ["e"], auto_pad="SAME_UPPER"),
        node("Pad", ["c", "pads"], ["y"], mode="reflect"),
    ]
    weights = {"w": rand(5, 1, 4, 2), "v": rand(2, 1, 3, 3), "pads": ints(0, 0, 1, 1, 0, 0, 1, 1)}
    outputs = [value("y", None), value("e", None)]
    made = model(nodes, [value("x", [8, "k", 1, "k"])], outputs, **weights)
    compiled = tvm_ext.compile(made, target=HOST, disabled_passes=["ConvTransposeToConv"])
    inputs = {"x": rand(8, 5, 1, 5)}
    found = compiled.run(inputs)
    for name, expected in zip(("y", "e"), by_runtime(made, inputs), strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)


@I.ir_module
class Known:
    @R.function
    def main(x: R.Tensor((2, 4, 6), "float32")):
        with R.dataflow():
            y = R.exp(R.reshape(x, (2, 24)))
            R.output(y)
        return y


def test_reshapes_of_known_sizes_are_fused() -> None:
    assert operator_counts(lowered(Known)) == {"call_tir": 1}


# Operators between two that compute, which read their operand as another shape: [b, 4, h, w].
VIEWS = {
    "reshape": ([node("Reshape", ["r", "to"], ["v"])], {"to": ints(0, 4, -1)}),
    "flatten": ([node("Flatten", ["r"], ["v"], axis=2)], {}),
    "all in one": ([node("Reshape", ["r", "to"], ["v"])], {"to": ints(-1)}),
    "unsqueeze": ([node("Unsqueeze", ["r", "to"], ["v"])], {"to": ints(0, 3)}),
    "squeeze": (
        [node("Unsqueeze", ["r", "to"], ["u"]), node("Squeeze", ["u", "to"], ["v"])],
        {"to": ints(1)},
    ),
    "moved axis of one": (
        [
            node("Unsqueeze", ["r", "to"], ["u"]),
            node("Transpose", ["u"], ["v"], perm=[0, 2, 1, 3, 4]),
        ],
        {"to": ints(1)},
    ),
    "view of a view": (
        [node("Reshape", ["r", "to"], ["u"]), node("Flatten", ["u"], ["v"], axis=0)],
        {"to": ints(0, 2, 2, -1)},
    ),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", one_in(4, VIEWS))
def test_numbers_where_a_view_is_read_late(name: str) -> None:
    """Storage is given away when its last reader is done, which may read it as another shape."""
    between, weights = VIEWS[name]
    chain = ["x"]
    later = []
    for number in range(5):
        later.append(node("Softmax", [chain[-1]], [f"s{number}"], axis=-1 - number % 2))
        chain.append(f"s{number}")
    nodes = [
        node("Softmax", ["x"], ["r"], axis=1),
        *between,
        *later,
        node("ReduceMax", [chain[-1]], ["m"], keepdims=0),
        node("CumSum", ["v", "axis"], ["c"]),
        node("Add", ["c", "m"], ["y"]),
    ]
    rank = {"reshape": 3, "flatten": 2, "all in one": 1, "unsqueeze": 6, "squeeze": 4}
    rank |= {"moved axis of one": 5, "view of a view": 2}
    outputs = [value("y", [None] * rank[name]), value("v", [None] * rank[name])]
    weights = {**weights, "axis": np.array(-1, np.int64)}
    proto = model(nodes, [value("x", ["b", 4, "h", "w"])], outputs, **weights)
    compiled = tvm_ext.compile(proto, HOST)
    for feeds in (
        {"x": rand(2, 4, 3, 5)},
        {"x": rand(1, 4, 7, 2)},
        {"x": rand(2, 4, 3, 5, seed=1)},
    ):
        for got, want in zip(compiled.run(feeds).values(), by_runtime(proto, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_view_of_an_input_keeps_its_numbers_at_the_next_run() -> None:
    nodes = [node("Flatten", ["x"], ["y"], axis=1)]
    proto = model(nodes, [value("x", ["b", 3, "n"])], [value("y", ["b", None])])
    compiled = tvm_ext.compile(proto, HOST)
    first, second = rand(2, 3, 4), rand(2, 3, 4, seed=1)
    kept = compiled.run({"x": first})["y"]
    compiled.run({"x": second})
    np.testing.assert_array_equal(kept, first.reshape(2, 12))


def test_views_inside_of_branches() -> None:
    flag = value("flag", [], onnx.TensorProto.BOOL)
    then = onnx.helper.make_graph(
        [node("Flatten", ["r"], ["t"]), node("Exp", ["t"], ["e"])],
        "then",
        [],
        [value("e", [None] * 2)],
    )
    other = onnx.helper.make_graph(
        [node("Flatten", ["r"], ["f"])], "other", [], [value("f", [None] * 2)]
    )
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("If", ["flag"], ["v"], then_branch=then, else_branch=other),
        node("Mul", ["v", "v"], ["y"]),
    ]
    proto = model(nodes, [value("x", ["b", 3, "n"]), flag], [value("y", [None] * 2)])
    compiled = tvm_ext.compile(proto, HOST)
    for taken in (True, False):
        feeds = {"x": rand(2, 3, 4), "flag": np.array(taken)}
        (want,) = by_runtime(proto, feeds)
        np.testing.assert_allclose(compiled.run(feeds)["y"], want, rtol=1e-6)


def test_sizes_that_are_chosen_in_the_run_are_no_obstacle_to_views() -> None:
    """The rows of a table around its middle, as relative positions are looked up."""
    nodes = [
        node("Shape", ["x"], ["n"]),
        node("Min", ["n", "middle"], ["reach"]),
        node("Sub", ["middle", "reach"], ["first"]),
        node("Add", ["middle", "reach"], ["end"]),
        node("Slice", ["table", "first", "end", "axis"], ["rows"]),
        node("Reshape", ["rows", "heads"], ["h"]),
        node("Transpose", ["h"], ["y"], perm=[0, 2, 3, 1]),
    ]
    weights = {"middle": ints(4), "axis": ints(0), "heads": ints(1, -1, 2, 3), "table": rand(8, 6)}
    proto = model(nodes, [value("x", ["n"])], [value("y", [None] * 4)], **weights)
    compiled = tvm_ext.compile(proto, HOST, opt_level="O0")
    for length in (2, 9):
        (want,) = by_runtime(proto, {"x": rand(length)})
        np.testing.assert_array_equal(compiled.run({"x": rand(length)})["y"], want)


@I.ir_module
class TwoOutputs:
    @R.function
    def main(x: R.Tensor(("b", 4, "n"), "float32")):
        b, n = T.int64(), T.int64()
        with R.dataflow():
            y = R.exp(x)
            z = R.reshape(y, (b, 4 * n))
            R.output(y, z)
        return (y, z)


@pytest.mark.extended
def test_outputs_on_a_device_share_no_memory() -> None:
    fresh = with_fresh_outputs(lowered(TwoOutputs))
    assert operator_counts(fresh) == {"call_tir": 2, "reshape": 1}
    scheduled, _ = schedule_kernels(fresh, HOST)
    machine = relax.VirtualMachine(tvm.compile(scheduled, target="llvm"), tvm.cpu())
    y, z = machine["main"](tvm.runtime.tensor(rand(2, 4, 3)))
    assert not np.shares_memory(np.from_dlpack(y), np.from_dlpack(z))
    np.testing.assert_array_equal(z.numpy(), y.numpy().reshape(2, 12))
