"""Chains of reshapes and transposes, followed by their factors, against NumPy."""

from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, tirx

from tvm_ext.relay_passes.axis_factors import ONE, AxisFactors, Extent
from tvm_ext.relay_passes.layout_roles import permutation_of


def computed(call: relax.Call, array: np.ndarray) -> np.ndarray:
    if call.op.name == "relax.permute_dims":
        return array.transpose(permutation_of(call))
    return array.reshape([int(extent) for extent in call.args[1].values])


def divisions(data, count: int) -> list[int]:
    """A shape of ``count`` elements."""
    shape = []
    while count > 1:
        extent = data.draw(st.sampled_from([n for n in range(1, count + 1) if count % n == 0]))
        shape.append(extent)
        count //= extent
    return shape or [1]


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_a_chain_is_one_transpose_at_most(data):
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    source = relax.Var("x", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder()
    factors = AxisFactors(list(source.ty.shape))
    array = np.arange(prod(shape)).reshape(shape)
    expr, view, value = source, factors.source, array
    for _ in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            axes = data.draw(st.permutations(range(value.ndim)))
            call = builder.normalize(relax.op.permute_dims(expr, list(axes)))
        else:
            call = builder.normalize(relax.op.reshape(expr, divisions(data, value.size)))
        view, value = factors.moved(view, call), computed(call, value)
        if view is None:
            return
        expr = relax.Var("y", call.ty)
    in_order = bool((value.ravel() == array.ravel()).all())
    assert factors.is_in_order(view) or not in_order
    if factors.is_in_order(view):
        np.testing.assert_array_equal(value, array.reshape(value.shape))
        return
    found, expr = array, source
    calls = factors.one_transpose(view, relax.ShapeExpr(list(value.shape)))
    for make in calls:
        call = builder.normalize(make(expr))
        found, expr = computed(call, found), relax.Var("y", call.ty)
    assert len(calls) <= 3
    np.testing.assert_array_equal(found, value)
    # An operand that broadcasts to the result does so to the source.
    kept = data.draw(st.lists(st.booleans(), min_size=value.ndim, max_size=value.ndim))
    sizes = [extent if keep else 1 for extent, keep in zip(value.shape, kept, strict=True)]
    operand = np.arange(prod(sizes)).reshape(sizes)
    turned = factors.constant_of_source(operand, view)
    moved = array + turned
    for make in calls:
        call = builder.normalize(make(relax.Var("x", relax.TensorType(moved.shape, "float32"))))
        moved = computed(call, moved)
    np.testing.assert_array_equal(moved, value + operand)


def test_sizes_of_a_run():
    n, h, w = (tirx.Var(name, "int64") for name in "nhw")
    factors = AxisFactors([n, h, w, 32])
    chw = factors.moved(factors.source, transposed([n, h, w, 32], [0, 3, 1, 2]))
    flat = factors.reshaped(chw, [n, 32, w * h])
    assert flat is not None
    assert not factors.is_in_order(flat)
    assert factors.is_in_order(factors.moved(flat, transposed([n, 32, h * w], [0, 2, 1])))
    # Heads of a channel axis, and an image out of a sequence.
    assert factors.reshaped(factors.source, [n, h * w, 4, 8]) is not None
    sequence = factors.reshaped(factors.source, [n, h * w, 32])
    assert factors.reshaped(sequence, [n, h, w, 32]) == factors.source


def test_what_cannot_be_followed():
    n, m = (tirx.Var(name, "int64") for name in "nm")
    factors = AxisFactors([6, n])
    assert factors.reshaped(factors.source, [6, m]) is None
    assert factors.reshaped(factors.source, [4, n]) is None
    assert factors.reshaped(factors.source, [6]) is None
    assert AxisFactors([6, 4]).reshaped(AxisFactors([6, 4]).source, [4, 6]) is None
    empty = AxisFactors([0, 4])
    assert empty.reshaped(empty.source, [4, 0]) is None


def test_a_constant_along_a_size_of_a_run():
    n = tirx.Var("n", "int64")
    factors = AxisFactors([n, 6])
    view = factors.reshaped(factors.source, [n, 2, 3])
    turned = factors.constant_of_source(np.array([1, 2, 3]), view)
    np.testing.assert_array_equal(turned, [[1, 2, 3, 1, 2, 3]])
    joined = factors.reshaped(factors.source, [n * 6])
    assert factors.constant_of_source(np.arange(6), joined) is None
    assert factors.shape_of_source([3], view) is None
    assert factors.shape_of_source([2, 1], view) is None
    assert factors.shape_of_source([n, 1, 1], view) == [n, 1]


def test_quotients():
    assert Extent(6, (0, 1)).divided_by(Extent(3, (1,))) == Extent(2, (0,))
    assert Extent(6, (0,)).divided_by(Extent(3, (1,))) is None
    assert Extent(6).divided_by(Extent(6)) == ONE


def test_a_repeated_symbol_divides_once():
    square = Extent(1, (0, 0))
    assert square.divided_by(Extent(1, (0,))) == Extent(1, (0,))


def transposed(shape, axes):
    tensor = relax.Var("x", relax.TensorType(shape, "float32"))
    return relax.BlockBuilder().normalize(relax.op.permute_dims(tensor, axes))
