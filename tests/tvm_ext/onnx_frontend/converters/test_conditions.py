"""Comparisons of sizes: decided while the model is compiled where that holds for every run."""

import numpy as np
import onnx
import pytest
from one_model import in_one_model, run_model
from onnx import TensorProto
from operator_models import by_runtime
from small_models import model, node, rand, value
from thoroughness import one_in
from tvm import relax
from unoptimised import HOST

import tvm_ext
from tvm_ext.onnx_frontend import import_model

BOOL = TensorProto.BOOL
COMPARISONS = ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]


def compared(operator: str, single: bool, against: int) -> onnx.ModelProto:
    """Sizes of ``x`` against a number, in this order and the other one."""
    nodes = [node("Shape", ["x"], ["sizes"])]
    nodes += [node("Gather", ["sizes", "place"], ["size"])] if single else []
    left = "size" if single else "sizes"
    nodes += [node(operator, [left, "k"], ["y"]), node(operator, ["k", left], ["z"])]
    outputs = [value(name, [] if single else [2], BOOL) for name in "yz"]
    numbers = {"place": np.array(0)} if single else {}
    return model(nodes, [value("x", ["N", 3])], outputs, k=np.array(against), **numbers)


@pytest.mark.extended
@pytest.mark.parametrize("single", one_in(2, [True, False]))
@pytest.mark.parametrize("operator", COMPARISONS)
def test_sizes_with_names_against_a_number(operator, single):
    proto = compared(operator, single, 3)
    compiled = tvm_ext.compile(proto, HOST, opt_level="O0")
    for size in (1, 3, 4):
        feeds = {"x": rand(size, 3)}
        for found, wanted in zip(
            compiled.run(feeds).values(), by_runtime(proto, feeds), strict=True
        ):
            np.testing.assert_array_equal(found, wanted)
            assert found.shape == wanted.shape


@in_one_model
@pytest.mark.parametrize("operator", COMPARISONS)
def test_a_size_is_never_below_0(operator):
    proto = compared(operator, True, -1)
    main = import_model(proto).mod["main"]
    (block,) = main.body.blocks
    assert not any(isinstance(binding.value, relax.Call) for binding in block.bindings), main
    feeds = {"x": rand(2, 3)}
    for found, wanted in zip(
        run_model(proto, feeds, "O0").values(),
        by_runtime(proto, feeds),
        strict=True,
    ):
        np.testing.assert_array_equal(found, wanted)


def test_a_shape_chosen_by_what_only_the_run_can_tell():
    """Sizes of 3 become 1: the shape of the result is computed in the run."""
    nodes = [
        node("Shape", ["x"], ["sizes"]),
        node("Equal", ["sizes", "three"], ["is_three"]),
        node("Where", ["is_three", "one", "sizes"], ["wanted"]),
        node("ConstantOfShape", ["wanted"], ["y"]),
    ]
    numbers = {"three": np.array([3]), "one": np.array([1])}
    proto = model(nodes, [value("x", ["N", "M"])], [value("y", None)], **numbers)
    compiled = tvm_ext.compile(proto, HOST, opt_level="O0")
    for shape, wanted in (((3, 5), (1, 5)), ((2, 3), (2, 1)), ((2, 4), (2, 4))):
        assert compiled.run({"x": rand(*shape)})["y"].shape == wanted


def test_constants_are_compared_at_once():
    nodes = [
        node("Shape", ["x"], ["sizes"]),
        node("LessOrEqual", ["sizes", "k"], ["c"]),
        node("Not", ["c"], ["y"]),
    ]
    proto = model(nodes, [value("x", [2, 3])], [value("y", [2], BOOL)], k=np.array([2]))
    found = run_model(proto, {"x": rand(2, 3)}, "O0")["y"]
    np.testing.assert_array_equal(found, [False, True])


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("level", ["O0", "O3"])
def test_equal_of_booleans_that_were_just_computed(level: str) -> None:
    # How PyTorch's exporter rounds an integer division down.
    nodes = [
        node("Less", ["x", "zero"], ["negative"]),
        node("Equal", ["negative", "yes"], ["differs"]),
        node("Cast", ["differs"], ["y"], to=TensorProto.FLOAT),
    ]
    proto = model(
        nodes,
        [value("x", ["N", 5])],
        [value("y", ["N", 5])],
        zero=np.float32(0),
        yes=np.array(True),
    )
    feed = {"x": rand(3, 5)}
    found = run_model(proto, feed, level)["y"]
    np.testing.assert_array_equal(found, by_runtime(proto, feed)[0])
