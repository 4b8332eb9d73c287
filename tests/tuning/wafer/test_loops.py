"""Programs read from loops that a user wrote by hand, without any of our templates."""

import pytest
from tvm.script import tirx as T

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.program import BlockWork, Steps, Transfer
from tvm_ext.tuning.wafer.cost_model import read_program


@T.prim_func(s_tir=True)
def stencil(A: T.Buffer((66, 66), "float32"), B: T.Buffer((64, 64), "float32")):
    with T.sblock("root"):
        tile = T.sblock_alloc_buffer((66, 66), scope="local")
        T.sblock_attr({"tvm_ext.home.0": "row/8 column/8"})
        for r in T.serial(8, annotations={"tvm_ext.mesh": "row"}):
            for c in T.serial(8, annotations={"tvm_ext.mesh": "column"}):
                for i, j in T.grid(10, 10):
                    with T.sblock("halo"):
                        vi = T.axis.spatial(66, r * 8 + i)
                        vj = T.axis.spatial(66, c * 8 + j)
                        T.reads(A[vi, vj])
                        T.writes(tile[vi, vj])
                        T.sblock_attr({"tvm_ext.communication": "halo"})
                        tile[vi, vj] = A[vi, vj]
                for i, j in T.grid(8, 8):
                    with T.sblock("sum"):
                        vi = T.axis.spatial(64, r * 8 + i)
                        vj = T.axis.spatial(64, c * 8 + j)
                        T.reads(tile[vi : vi + 3, vj : vj + 3])
                        T.writes(B[vi, vj])
                        B[vi, vj] = (
                            tile[vi, vj + 1] + tile[vi + 2, vj + 1] + tile[vi + 1, vj]
                        ) * T.float32(0.25)


def test_a_stencil_written_by_hand():
    program = read_program(stencil)
    halo, work = program.items
    assert isinstance(halo, Transfer)
    assert isinstance(work, BlockWork)
    assert (program.rows, program.columns) == (8, 8)
    # Cut in 8, 66 cells are shards of 9; a tile with its halo has 10 each way.
    assert halo.words == 10 * 10 - 9 * 9
    assert (halo.pattern, halo.distance) == ("halo", 1)
    assert (work.instructions, work.length, work.elements) == (24, 8, 192)
    assert work.flops == 3 * 64
    assert program.buffers == {"tile": 4 * 10 * 10}
    assert program.shards == {"A": 4 * 9 * 9, "B": 4 * 8 * 8}


@T.prim_func(s_tir=True)
def steps(A: T.Buffer((16, 64), "float32"), B: T.Buffer((16,), "float32")):
    with T.sblock("root"):
        part = T.sblock_alloc_buffer((16, 64), scope="local")
        for r in T.serial(4, annotations={"tvm_ext.mesh": "row"}):
            for s in T.serial(8, annotations={"tvm_ext.pipeline": 2}):
                for i, k in T.grid(4, 8):
                    with T.sblock("part"):
                        vi = T.axis.spatial(16, r * 4 + i)
                        vk = T.axis.spatial(64, s * 8 + k)
                        T.reads(A[vi, vk])
                        T.writes(part[vi, vk])
                        T.sblock_attr({"tvm_ext.communication": "gather"})
                        part[vi, vk] = A[vi, vk]
                for k, i in T.grid(8, 4):
                    with T.sblock("add"):
                        vi = T.axis.spatial(16, r * 4 + i)
                        vk = T.axis.spatial(64, s * 8 + k)
                        T.where(s * 8 + k < 60)
                        T.reads(part[vi, vk], B[vi])
                        T.writes(B[vi])
                        B[vi] = B[vi] + part[vi, vk]


def test_steps_with_messages_under_way_hold_two_buffers():
    (loop,) = read_program(steps).items
    assert isinstance(loop, Steps)
    assert (loop.times, loop.overlapped) == (8, True)
    (work,) = [one for one in loop.items if isinstance(one, BlockWork)]
    # 60 of 64 are valid, in all PEs alike.
    assert work.elements == 32 * 60 / 64
    assert work.row_share.tolist() == [1, 1, 1, 1]
    assert read_program(steps).buffers == {"part": 2 * 4 * 4 * 8}


def without_mesh():
    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((8,), "float32")):
        with T.sblock("root"):
            for i in range(8):
                with T.sblock("one"):
                    v = T.axis.spatial(8, i)
                    T.reads()
                    T.writes(A[v])
                    A[v] = T.float32(1)

    return func


def unknown_pattern():
    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        with T.sblock("root"):
            for i in T.serial(8, annotations={"tvm_ext.mesh": "row"}):
                with T.sblock("one"):
                    v = T.axis.spatial(8, i)
                    T.reads(A[v])
                    T.writes(B[v])
                    T.sblock_attr({"tvm_ext.communication": "telepathy"})
                    B[v] = A[v]

    return func


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (without_mesh(), "no loop is annotated as a row or column"),
        (unknown_pattern(), "'telepathy' is no pattern of communication"),
    ],
)
def test_what_cannot_be_read_says_why(func, reason):
    with pytest.raises(NotApplicable, match=reason):
        read_program(func)
