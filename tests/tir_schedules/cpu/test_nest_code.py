"""Nests: divisions split away, loops joined, pieces cut so that no branch is left."""

import pytest
import tvm
from lowering import f32, kernel_of
from tvm import relax, s_tir, te, tirx
from tvm.relax.op import nn
from tvm.sym import Analyzer

from tvm_ext.tir_schedules.analysis.buffer_access import kernel_blocks, nodes
from tvm_ext.tir_schedules.analysis.loop_nest import (
    Nest,
    in_order_of_writing,
    joined,
    load_strides,
    nest_of,
    store_strides,
    without_divisions,
)
from tvm_ext.tir_schedules.cpu.data_parallel import LoopPartition, cut, leaves, sharing_loops
from tvm_ext.tir_schedules.cpu.nest_code import FlatPlaces, vector_chunk, vector_pieces
from tvm_ext.tir_schedules.cpu.parallel_vectorize import MAX_PIECES, branch_comparisons
from tvm_ext.tir_schedules.inlining import inline_blocks
from tvm_ext.tir_schedules.statements import FlatViews

op = relax.op


def nest(func: tirx.PrimFunc) -> Nest:
    sch = s_tir.Schedule(func)
    inline_blocks(sch)
    (block,) = kernel_blocks(sch)
    found = nest_of(sch.get(block), FlatViews())
    assert found is not None
    return found


def extents(found: Nest) -> list[int]:
    return [axis.extent for axis in found.axes]


def test_addresses_are_flat_and_single_loops_gone() -> None:
    found = nest(kernel_of(lambda x: op.permute_dims(x, [0, 2, 1]), f32(1, 5, 7)))
    assert extents(found) == [7, 5]
    assert store_strides(found) == (5, 1)
    assert load_strides(found) == [(1, 7)]


def test_dense_loops_are_joined() -> None:
    func = kernel_of(lambda a, b: op.add(a, b), f32(3, 5, 7), f32(5, 7))
    found = joined(nest(func))
    assert extents(found) == [3, 35]
    assert load_strides(found) == [(35, 1), (0, 1)]


def test_a_loop_whose_value_is_used_is_not_joined() -> None:
    func = te.create_prim_func([te.compute((3, 5), lambda i, j: i.astype("float32"), name="rows")])
    assert extents(joined(nest(func))) == [3, 5]


def test_divisions_are_split_away() -> None:
    func = kernel_of(
        lambda x: op.reshape(op.permute_dims(op.reshape(x, [4, 6, 5]), [1, 0, 2]), [120]), f32(120)
    )
    found = without_divisions(nest(func))
    assert extents(found) == [6, 4, 5]
    assert not nodes(found.store.value, tirx.FloorDiv, tirx.FloorMod)
    assert load_strides(found) == [(5, 30, 1)]


def test_division_of_resize_rounds_down() -> None:
    """TVM writes it with the division that rounds to zero."""
    from tvm.relax.op import image

    func = kernel_of(
        lambda x: image.resize2d(
            x,
            (6, 8),
            layout="NHWC",
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        ),
        f32(1, 3, 4, 5),
    )
    found = without_divisions(nest(func))
    assert extents(found) == [3, 2, 4, 2, 5]
    assert load_strides(found) == [(20, 0, 5, 0, 1)]


def test_loops_go_in_order_of_writing() -> None:
    a = te.placeholder((3, 5), name="a")
    func = te.create_prim_func([a, te.compute((5, 3), lambda i, j: a[j, i], name="b")])
    sch = s_tir.Schedule(func)
    (block,) = kernel_blocks(sch)
    sch.reorder(*reversed(sch.get_loops(block)))
    found = in_order_of_writing(nest(sch.mod["main"]))
    assert store_strides(found) == (3, 1)


def test_two_assignments_are_no_nest() -> None:
    stmt = s_tir.Schedule(kernel_of(lambda x: op.matmul(x, x), f32(3, 3)))
    block = stmt.get_sblock("matmul")
    assert nest_of(stmt.get(block), FlatViews()) is None


def test_padding_is_cut_into_pieces_without_branches() -> None:
    found = cut(nest(kernel_of(lambda x: nn.pad(x, [1, 2, 3, 4]), f32(5, 7))))
    assert [extents(leaf) for leaf in leaves(found)] == [[14], [5, 3], [5, 7], [5, 4], [2, 14]]
    assert not any(branch_comparisons(leaf.store.value) for leaf in leaves(found))


def test_pieces_share_the_loops_outside() -> None:
    func = kernel_of(lambda a, b: op.concat([a, b], 2), f32(3, 5, 7), f32(3, 5, 4))
    found = sharing_loops(cut(nest(func)))
    assert isinstance(found, LoopPartition)
    assert [axis.extent for axis in found.axes] == [3, 5]
    assert [extents(leaf) for leaf in leaves(found)] == [[7], [4]]


def test_too_many_pieces_are_not_made() -> None:
    count = MAX_PIECES + 1
    func = kernel_of(lambda *v: op.concat(list(v), 1), *[f32(3, 2)] * count)
    assert isinstance(cut(nest(func)), Nest)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("once", [False, True])
def test_vectors_cover_a_short_loop(lanes: int, once: bool) -> None:
    for extent in range(1, 8 * lanes + 1):
        pieces = vector_pieces(extent, lanes, once)
        covered = [i for start, length in pieces for i in range(start, start + length)]
        assert set(covered) == set(range(extent))
        assert all(length & (length - 1) == 0 for _, length in pieces)
        if once:
            assert len(covered) == extent


@pytest.mark.parametrize(("extent", "wanted"), [(7, 4), (16, 16), (1024, 64), (97, 16), (1000, 64)])
def test_length_of_vector_loops(extent: int, wanted: int) -> None:
    assert vector_chunk(extent, 16) == wanted


def test_places_of_a_value_that_a_number_decides() -> None:
    """A number for the row leaves one of two loads; its address is that of its own tensor."""
    rows, columns = (tirx.Var(name, "int64") for name in ("rows", "columns"))
    even, odd = (
        tirx.decl_buffer(shape, "float32", name)
        for shape, name in (((rows, columns), "even"), ((rows, 7), "odd"))
    )

    def value(row: tirx.Expr, column: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
        loads = [tirx.BufferLoad(buffer, [row, column + lane]) for buffer in (even, odd)]
        condition = tirx.floormod(row, 2) == 0
        if isinstance(condition, tirx.IntImm):
            return loads[0] if condition else loads[1]
        return tirx.if_then_else(condition, *loads)

    places = FlatPlaces(value, [even, odd], FlatViews(symbolic_sizes=True))
    addresses = []
    for row in (1, 3):
        at = places.at(row, 2, tirx.const(0, "int64"))
        (load,) = (one for one in nodes(at, tvm.ir.TensorLoad) if one.source.name == "odd")
        addresses += load.indices
    assert Analyzer().can_prove_equal(addresses[1] - addresses[0], 2 * 7)
