"""Results that rounding of the arguments moves, and results that are wrong."""

import numpy as np
import pytest
from both_generators import compared
from lowering import f32, kernel_of
from small_models import rand
from tvm import relax
from tvm.script import tirx as T

from tvm_ext.mlir import compare_kernels
from tvm_ext.mlir.random_arguments import DRAWS, random_arguments
from tvm_ext.mlir.rounding_sensitivity import is_few_moves, moved_by_rounding, moves_everywhere


def steps(arguments):
    """Sums that are rounded to whole numbers: a few lie right between two of them."""
    (x,) = arguments
    return {"y": np.round(x.sum(axis=1) * 1e4)}


def chaos(arguments):
    (x,) = arguments
    for _ in range(60):
        x = 3.9 * x * (1 - x)
    return {"y": x}


X = np.abs(rand(2000, 50))


def test_numbers_that_round_to_the_other_side_are_few_moves():
    ours, moved = steps([X])["y"], [one["y"] for one in moved_by_rounding(steps, [X])]
    between = np.flatnonzero(np.any([one != ours for one in moved], axis=0))
    assert 0 < len(between) < 0.2 * len(ours)
    theirs = ours.copy()
    theirs[between[0]] = next(one for one in moved if one[between[0]] != ours[between[0]])[
        between[0]
    ]
    assert is_few_moves(ours, theirs, moved, 0.0)
    # Further off than rounding moves it, in many places, or no number.
    theirs[between[0]] = ours[between[0]] + 1000
    assert not is_few_moves(ours, theirs, moved, 0.0)
    assert not is_few_moves(ours, ours + 1, moved, 0.0)
    theirs[between[0]] = np.nan
    assert not is_few_moves(ours, theirs, moved, 0.0)


def steady(arguments):
    return {"y": np.tanh(arguments[0])}


@pytest.mark.parametrize(("run", "expected"), [(chaos, True), (steady, False)])
def test_a_recurrence_may_move_everywhere(run, expected):
    moved = [one["y"] for one in moved_by_rounding(run, [X])]
    assert moves_everywhere(run([X])["y"], moved, 1e-4) is expected


def test_integers_do_not_move():
    given = [np.arange(8, dtype="int32"), 3]
    for one in moved_by_rounding(lambda drawn: dict(enumerate(drawn)), given):
        np.testing.assert_array_equal(one[0], given[0])
        assert one[1] == 3


@T.prim_func(s_tir=True)
def recurrence(
    x: T.Buffer((200, 64), "float32"),
    w: T.Buffer((64, 64), "float32"),
    h: T.Buffer((200, 64), "float32"),
):
    """tanh of products with weights that make anything of a rounding error."""
    for j in range(64):
        h[0, j] = x[0, j]
    for i, j in T.grid(199, 64):
        h[i + 1, j] = x[i + 1, j]
        for k in range(64):
            h[i + 1, j] = h[i + 1, j] + w[k, j] * h[i, k]
        h[i + 1, j] = T.tanh(h[i + 1, j])


def test_a_recurrence_is_compared_with_weights_that_keep_it_steady():
    (found,) = compared({"recurrence": recurrence}).values()
    assert found.outcome == "agrees", found
    assert found.difference.max_rel < 1e-4


def test_what_is_never_steady_is_not_compared(monkeypatch):
    monkeypatch.setattr(compare_kernels, "DRAWS", DRAWS[:1])
    (found,) = compared({"recurrence": recurrence}).values()
    assert (found.outcome, found.reason) == (
        "not compared",
        "rounding of its arguments moves its results as far",
    )


def test_small_numbers_are_within_the_root_of_the_longest_axis():
    given = [(200, 64), (64, 64), (200, 64)]
    largest = {
        draw: max(np.abs(one).max() for one in random_arguments(recurrence, given, 0, draw))
        for draw in DRAWS
    }
    assert 0.9 < largest["around zero"] <= 1
    assert 0.9 < largest["positive"] <= 1
    assert 0.9 < largest["small"] * np.sqrt(200) <= 1


def quantised():
    def expression(x, w):
        product = relax.op.matmul(x, w)
        whole = relax.op.round(relax.op.multiply(product, relax.const(300.0)))
        return relax.op.multiply(whole, relax.const(np.float32(1 / 300)))

    return kernel_of(expression, f32(300, 400), f32(400, 200))


@pytest.mark.extended
@pytest.mark.parametrize(("factor", "outcome"), [(1.0, "agrees"), (1.01, "differs")])
def test_steps_between_quantised_values_agree_and_others_do_not(monkeypatch, factor, outcome):
    def run(self, drawn):
        found = by_mlir(self, drawn)
        return {name: one * np.float32(factor) for name, one in found.items()}

    by_mlir = compare_kernels._Runs.by_mlir
    monkeypatch.setattr(compare_kernels._Runs, "by_mlir", run)
    (found,) = compared({"quantised": quantised()}).values()
    assert found.outcome == outcome, found
