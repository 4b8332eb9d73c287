"""Memory of inputs and outputs: read in place, handed out as it is, and still nobody else's."""

from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import helper
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.report.records import WITH_OUT_PARAMS, as_machine_code

# Enough for an input to be read in place.
ROWS, COLUMNS = 64, 512
STORED = rand(3, seed=2)


@pytest.fixture(scope="module")
def shared() -> tvm_ext.CompiledModel:
    """Beside two computed outputs an input, a view of another output, and a weight."""
    nodes = [
        node("Relu", ["x"], ["computed"]),
        node("Identity", ["x"], ["input"]),
        node("Reshape", ["computed", "flat"], ["view"]),
        node("Identity", ["stored"], ["weight"]),
        node("Exp", ["x"], ["also_computed"]),
    ]
    names = ("computed", "input", "view", "weight", "also_computed")
    outputs = [value(name, None) for name in names]
    inputs = [value("x", ["rows", COLUMNS])]
    made = model(nodes, inputs, outputs, flat=np.array([-1]), stored=STORED)
    return tvm_ext.compile(made, HOST)


def expected(x: np.ndarray) -> dict[str, np.ndarray]:
    computed = np.maximum(x, 0)
    parts = {"computed": computed, "input": x, "view": computed.ravel(), "weight": STORED}
    return {**parts, "also_computed": np.exp(x)}


def assert_expected(found: dict[str, np.ndarray], x: np.ndarray) -> None:
    for name, array in expected(x).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5)


def at_offset(x: np.ndarray, offset: int) -> np.ndarray:
    """A copy that begins so many bytes behind an address that vectors are aligned to."""
    room = np.empty(x.nbytes + 64 + offset, "uint8")
    first = -room.ctypes.data % 64 + offset
    copied = room[first : first + x.nbytes].view(x.dtype).reshape(x.shape)
    copied[...] = x
    return copied


def test_only_what_shares_memory_is_copied(shared) -> None:
    assert shared.report.memory.copied_outputs == ["input", "view", "weight"]


def test_no_output_changes_with_another_one_or_a_later_run(shared) -> None:
    x = at_offset(rand(ROWS, COLUMNS), 0)
    first = shared.run({"x": x})
    later = shared.run({"x": x + 1})
    assert_expected(first, x)
    assert_expected(later, x + 1)
    for name in first:
        before = first[name].copy()
        first[name][...] = 7
        others = {other: array for other, array in first.items() if other != name}
        assert_expected({**others, name: before}, x)
        first[name][...] = before
    assert_expected(shared.run({"x": x}), x)


@pytest.mark.parametrize("offset", [0, 4, 16])
def test_inputs_may_begin_anywhere(shared, offset: int) -> None:
    x = rand(ROWS, COLUMNS)
    for number in range(3):
        assert_expected(shared.run({"x": at_offset(x + number, offset)}), x + number)


def test_inputs_that_lie_differently_from_run_to_run(shared) -> None:
    x = rand(ROWS, COLUMNS)
    frozen = at_offset(x + 1, 0)
    frozen.flags.writeable = False
    every_other = at_offset(np.repeat(x + 2, 2, axis=1), 0)[:, ::2]
    for given in (at_offset(x, 0), frozen, at_offset(x, 4), every_other, frozen, at_offset(x, 0)):
        before = given.copy()
        assert_expected(shared.run({"x": given}), before)
        np.testing.assert_array_equal(given, before)


def test_an_output_may_be_the_next_input(shared) -> None:
    x = rand(ROWS, COLUMNS)
    found = shared.run({"x": x})["also_computed"]
    assert_expected(shared.run({"x": found}), np.exp(x))
    np.testing.assert_allclose(found, np.exp(x), rtol=1e-5)


def test_what_a_branch_gives_back_is_copied() -> None:
    branches = {
        "then_branch": helper.make_graph(
            [node("Identity", ["x"], ["t"])], "t", [], [value("t", [ROWS, COLUMNS])]
        ),
        "else_branch": helper.make_graph(
            [node("Exp", ["x"], ["e"])], "e", [], [value("e", [ROWS, COLUMNS])]
        ),
    }
    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "zero"], ["positive"]),
        node("If", ["positive"], ["y"], **branches),
    ]
    inputs = [value("x", [ROWS, COLUMNS])]
    compiled = tvm_ext.compile(
        model(nodes, inputs, [value("y", None)], zero=np.float32(0)), HOST, opt_level="O1"
    )
    assert compiled.report.memory.copied_outputs == ["y"]
    x = at_offset(np.abs(rand(ROWS, COLUMNS)), 0)
    found = compiled.run({"x": x})["y"]
    assert not np.shares_memory(found, x)
    np.testing.assert_array_equal(found, x)


def layers(count: int) -> onnx.ModelProto:
    """As many kernels, of which no two are alike."""
    operators = ["Softmax", "Exp", "Tanh", "Sigmoid", "Erf", "Neg", "Abs", "Relu", "Sqrt"]
    names = [f"x{place}" for place in range(count)] + ["y"]
    steps = zip(operators, pairwise(names), strict=False)
    nodes = [node(operator, [before], [after]) for operator, (before, after) in steps]
    return model(nodes, [value("x0", ["n", 8])], [value("y", None)])


@pytest.mark.parametrize(("count", "is_short"), [(2, True), (9, False)])
def test_a_short_program_is_machine_code_beside_bytecode(count: int, is_short: bool) -> None:
    made = tvm_ext.compile(layers(count), HOST, opt_level="O0")
    machine = made._new_machine()
    names = [as_machine_code(name) for name in ("main", WITH_OUT_PARAMS)]
    assert [machine.implements_function(name) for name in names] == [is_short] * 2
    # A profile reads the bytecode.
    assert len(made.profile({"x0": rand(3, 8)}, repeat=1).calls) == count
    out = np.empty((3, 8), np.float32)
    np.testing.assert_array_equal(
        made.run({"x0": rand(3, 8)})["y"], made.run({"x0": rand(3, 8)}, out={"y": out})["y"]
    )
