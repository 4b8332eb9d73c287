"""Forms of If and Loop that exporters write: impossible branches, invariants, sizes by value."""

import numpy as np
import onnx
import pytest
from control_flow_models import assert_same
from onnx import TensorProto, helper
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import FormError, ModelError, RunError
from tvm_ext.onnx_frontend import import_model, prepare_model
from tvm_ext.onnx_frontend.converters import CONVERTERS
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter

BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
GO_ON = node("Identity", ["going"], ["go_on"])
X, W = rand(4, 3), rand(3, 3, seed=1)
SHAPES = {"x": [4, 3]}


def branch(nodes: list, output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, "branch", [], [value(output, None)])


def choice(then: onnx.GraphProto, otherwise: onnx.GraphProto, **weights) -> onnx.ModelProto:
    nodes = [
        node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise, name="choice"),
        node("Exp", ["y"], ["z"]),
    ]
    inputs = [value("c", [], BOOL), value("x", ["N", "M"])]
    return model(nodes, inputs, [value("z", [None, None])], **weights)


IMPOSSIBLE = branch([node("MatMul", ["x", "v"], ["e"], name="product")], "e")
POSSIBLE = branch([node("Neg", ["x"], ["t"])], "t")
V = rand(5, 3, seed=2)


@pytest.mark.extended
@pytest.mark.parametrize(("level", "swapped"), [("O0", False), ("O3", True)])
def test_a_branch_that_no_runtime_could_run_fails_only_when_it_is_chosen(level, swapped, tmp_path):
    sides = (IMPOSSIBLE, POSSIBLE) if swapped else (POSSIBLE, IMPOSSIBLE)
    compiled = tvm_ext.compile(choice(*sides, v=V), HOST, input_shapes=SHAPES, opt_level=level)
    compiled.save(tmp_path / "m.tvmx")
    for ready in (compiled, tvm_ext.load(tmp_path / "m.tvmx")):
        (z,) = ready.run({"c": np.array(not swapped), "x": X}).values()
        np.testing.assert_allclose(z, np.exp(-X), rtol=1e-5)
        side = "then" if swapped else "else"
        with pytest.raises(RunError, match=f"'choice' chose its {side} branch, where MatMul node"):
            ready.run({"c": np.array(swapped), "x": X})
        (z,) = ready.run({"c": np.array(not swapped), "x": X}).values()
        np.testing.assert_allclose(z, np.exp(-X), rtol=1e-5)


def test_two_impossible_branches_are_refused():
    other = branch([node("MatMul", ["x", "v"], ["t"], name="other")], "t")
    with pytest.raises(ModelError, match="MatMul node"):
        import_model(choice(other, IMPOSSIBLE, v=V), SHAPES)


class _Narrow(OnnxOpConverter):
    """A converter that does not take a form which ONNX allows."""

    @classmethod
    def _impl_v1(cls, bb, inputs, attr, params):
        raise FormError("this form is not known")


def test_a_branch_that_is_only_not_supported_is_refused(monkeypatch):
    monkeypatch.setitem(CONVERTERS, "Abs", _Narrow)
    ours = branch([node("Abs", ["x"], ["e"], name="narrow")], "e")
    with pytest.raises(ModelError, match=r"Abs node 'narrow'.*this form is not known"):
        import_model(choice(POSSIBLE, ours), SHAPES)


def test_an_impossible_branch_in_a_branch_reaches_the_outer_if():
    inner = node("If", ["c"], ["i"], then_branch=IMPOSSIBLE, else_branch=IMPOSSIBLE, name="inner")
    proto = choice(POSSIBLE, branch([inner], "i"), v=V)
    compiled = tvm_ext.compile(proto, HOST, input_shapes=SHAPES, opt_level="O0")
    (z,) = compiled.run({"c": np.array(True), "x": X}).values()
    np.testing.assert_allclose(z, np.exp(-X), rtol=1e-5)
    with pytest.raises(RunError, match="'choice' chose its else branch, where MatMul node"):
        compiled.run({"c": np.array(False), "x": X})


def invariant_loop() -> onnx.ModelProto:
    """``s = s @ w + b`` with ``w`` and ``b`` carried through, the one as it is, one by a copy."""
    nodes = [
        node("MatMul", ["s", "w_in"], ["product"]),
        node("Add", ["product", "b_in"], ["s_out"]),
        node("Identity", ["b_in"], ["b_out"]),
        GO_ON,
    ]
    given = ["w_in", "s", "b_in"]
    inputs = [value("i", [], INT64), value("going", [], BOOL), *(value(n, None) for n in given)]
    outputs = [value(n, None) for n in ("w_in", "s_out", "b_out", "product")]
    body = helper.make_graph(nodes, "body", inputs, [value("go_on", [], BOOL), *outputs])
    loop = node("Loop", ["m", "", "w", "x", "b"], ["w2", "y", "b2", "ys"], body=body, name="loop")
    given = [value("m", [], INT64), value("x", [4, 3]), value("b", [3])]
    results = [value("w2", [3, 3]), value("y", [4, 3]), value("b2", [3]), value("ys", None)]
    return model([loop, node("Neg", ["b2"], ["b3"])], given, [*results, value("b3", [3])], w=W)


def test_what_a_loop_passes_on_unchanged_is_taken_out():
    prepared = prepare_model(invariant_loop())[2]
    (loop,) = (n for n in prepared.graph.node if n.op_type == "Loop")
    assert list(loop.input) == ["m", "", "x"]
    assert [value.name for value in loop.attribute[0].g.input] == ["i", "going", "s"]
    assert [value.name for value in prepared.graph.output] == ["w2", "y", "b2", "ys", "b3"]


@pytest.fixture(scope="module")
def compiled_loop():
    return tvm_ext.compile(invariant_loop(), HOST, opt_level="O3")


@pytest.mark.extended
@pytest.mark.parametrize("trips", [0, 1, 7])
def test_a_loop_with_invariants_computes_the_same(trips, compiled_loop):
    bias = rand(3, seed=3)
    found = compiled_loop.run({"m": np.array(trips), "x": X, "b": bias})
    state, products = X, []
    for _ in range(trips):
        products.append(state @ W)
        state = products[-1] + bias
    np.testing.assert_allclose(found["y"], state, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found["w2"], W)
    np.testing.assert_array_equal(found["b2"], bias)
    np.testing.assert_array_equal(found["b3"], -bias)
    assert found["ys"].shape[0] == trips
    if trips:
        np.testing.assert_allclose(found["ys"], np.stack(products), rtol=1e-4, atol=1e-5)


@pytest.mark.extended
def test_a_carried_value_that_two_outputs_read_is_taken_out_once():
    """``s`` becomes ``w`` of the iteration before, which stays what it is."""
    inputs = [value("i", [], INT64), value("going", [], BOOL), value("w", None), value("s", None)]
    outputs = [value("go_on", [], BOOL), value("w", None), value("w", None)]
    body = helper.make_graph([GO_ON], "body", inputs, outputs)
    loop = node("Loop", ["m", "", "a", "b"], ["y", "z"], body=body)
    shape = ["N", 3]
    given = [value("m", [], INT64), value("a", shape), value("b", shape)]
    proto = model([loop], given, [value("y", shape), value("z", shape)])
    compiled = tvm_ext.compile(proto, HOST, opt_level="O0")
    for trips in (0, 3):
        found = compiled.run({"m": np.array(trips), "a": X, "b": -X})
        np.testing.assert_array_equal(found["y"], X)
        np.testing.assert_array_equal(found["z"], X if trips else -X)


def test_arithmetic_with_the_sizes_of_a_slice_by_value():
    """The sizes of what a run cuts out have names, so that Shape, Slice and Tile can use them."""
    nodes = [
        node("Slice", ["x", "start", "end", "zero"], ["cut"]),
        node("Shape", ["cut"], ["sizes"]),
        node("Slice", ["sizes", "zero", "one"], ["rows"]),
        node("Concat", ["rows", "one"], ["repeats"], axis=0),
        node("Tile", ["cut", "repeats"], ["y"]),
    ]
    inputs = [value("x", [4, 3]), value("start", [1], INT64), value("end", [1], INT64)]
    proto = model(nodes, inputs, [value("y", None)], zero=np.array([0]), one=np.array([1]))
    compiled = tvm_ext.compile(proto, HOST, opt_level="O0")
    for start, end in ((1, 3), (0, 4), (3, 4)):
        (y,) = compiled.run({"x": X, "start": np.array([start]), "end": np.array([end])}).values()
        np.testing.assert_array_equal(y, np.tile(X[start:end], (end - start, 1)))


@pytest.mark.extended
@pytest.mark.parametrize("steps", [None, [2]])
def test_a_slice_of_as_many_axes_as_the_run_gives_bounds(steps):
    inputs = ["x", "start", "end"] + (["", "steps"] if steps else [])
    bounds = [value(name, ["axes"], INT64) for name in ("start", "end")]
    stored = {"steps": np.array(steps)} if steps else {}
    proto = model(
        [node("Slice", inputs, ["y"])],
        [value("x", ["N", 3]), *bounds],
        [value("y", None)],
        **stored,
    )
    several = [([1], [3])] if steps else [([1], [3]), ([1, 0], [9, 2]), ([-2, -1], [4, 3])]
    feeds = [{"x": X, "start": np.array(a), "end": np.array(b)} for a, b in several]
    assert_same(proto, *feeds, levels=["O0"])
