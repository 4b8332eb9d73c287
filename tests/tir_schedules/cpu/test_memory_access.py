"""Strides, patterns, lines and reuse of kernels that can be counted by hand."""

import pytest
import tvm
from machines import MACHINE
from tvm import tirx
from tvm.script import tirx as T

from tvm_ext.tir_schedules.analysis.memory_access import MemoryAccess
from tvm_ext.tir_schedules.cpu.memory_access import cache_levels, memory_accesses
from tvm_ext.tir_schedules.lowered_kernel import lowered

LINE = 64


def accesses_of(func: tirx.PrimFunc) -> list[MemoryAccess]:
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return memory_accesses(lowered(mod, MACHINE), MACHINE)


def only(found: list[MemoryAccess], tensor: str, is_store: bool = False) -> MemoryAccess:
    (one,) = [a for a in found if (a.tensor, a.is_store) == (tensor, is_store)]
    return one


@T.prim_func(s_tir=True)
def column_sums(x: T.Buffer((1024, 512), "float32"), y: T.Buffer((512,), "float32")) -> None:
    for j, i in T.grid(512, 1024):
        with T.sblock("sums"):
            vj, vi = T.axis.remap("SR", [j, i])
            with T.init():
                y[vj] = T.float32(0)
            y[vj] = y[vj] + x[vi, vj]


def test_column_sums_walk_down_a_column() -> None:
    read = only(accesses_of(column_sums), "x")
    assert read.pattern == "strided"
    assert [(s.name, s.extent, s.elements, s.bytes) for s in read.strides] == [
        ("j", 512, 1, 4),
        ("i", 1024, 512, 2048),
    ]
    assert (read.runs, read.units, read.least_units) == (512 * 1024, 1, 1)
    # A column is 1,024 lines, more than L1 holds: each comes sixteen times.
    assert read.fetched_into["L1"] == 512 * 1024 * LINE
    assert read.fetched_into["L2"] == read.least_bytes == 4 * 512 * 1024
    assert read.overfetch == LINE / 4
    (reuse,) = read.reuse
    assert (reuse.loop, reuse.is_spatial, reuse.level) == ("j", True, "L2")
    assert reuse.distance_bytes == 1024 * LINE + LINE


@T.prim_func(s_tir=True)
def spread(
    x: T.Buffer((64, 256), "float32"),
    b: T.Buffer((64,), "float32"),
    y: T.Buffer((64, 256), "float32"),
) -> None:
    with T.sblock("root"):
        for i in T.serial(64):
            for k in T.serial(16):
                for lane in T.vectorized(16):
                    with T.sblock("add"):
                        vi = T.axis.spatial(64, i)
                        vk = T.axis.spatial(256, k * 16 + lane)
                        y[vi, vk] = x[vi, vk] + b[vi]


def test_vectors_take_whole_lines_and_a_scalar_is_spread() -> None:
    found = accesses_of(spread)
    read = only(found, "x")
    assert (read.pattern, read.lanes, read.units) == ("contiguous", 16, 1)
    assert [(s.kind, s.elements) for s in read.strides] == [
        ("serial", 256),
        ("serial", 16),
        ("vector", 1),
    ]
    assert read.overfetch == 1
    assert not read.reuse
    scalar = only(found, "b")
    assert (scalar.pattern, scalar.lanes) == ("broadcast", 1)
    # The same element while k runs, and the next of its line with i.
    assert [(r.loop, r.is_spatial) for r in scalar.reuse] == [("k", False), ("i", True)]
    assert [r.level for r in scalar.reuse] == ["L1", "L1"]


@T.prim_func(s_tir=True)
def every_other(x: T.Buffer((2048,), "float32"), y: T.Buffer((1024,), "float32")) -> None:
    for k in T.serial(64):
        for lane in T.vectorized(16):
            with T.sblock("copy"):
                v = T.axis.spatial(1024, k * 16 + lane)
                y[v] = x[v * 2]


def test_a_strided_vector_touches_two_lines() -> None:
    read = only(accesses_of(every_other), "x")
    assert (read.pattern, read.least_units) == ("strided", 1)
    # The last element of the second line is not among them.
    assert read.units == 2 - 4 / LINE
    assert read.strides[-1].bytes == 8
    assert read.overfetch == pytest.approx(2, rel=1e-3)


@T.prim_func(s_tir=True)
def looked_up(
    x: T.Buffer((4096,), "float32"),
    places: T.Buffer((1024,), "int32"),
    y: T.Buffer((1024,), "float32"),
) -> None:
    for k in T.serial(1024):
        with T.sblock("gather"):
            v = T.axis.spatial(1024, k)
            y[v] = x[places[v]]


def test_places_that_data_decide_are_gathered() -> None:
    found = accesses_of(looked_up)
    read = only(found, "x")
    assert read.pattern == "gathered"
    assert read.strides[0].elements is None
    assert only(found, "places").pattern == "contiguous"


@T.prim_func(s_tir=True)
def backwards(x: T.Buffer((1024,), "float32"), y: T.Buffer((1024,), "float32")) -> None:
    for k in T.serial(1024):
        with T.sblock("flip"):
            v = T.axis.spatial(1024, k)
            y[v] = x[1023 - v]


def test_backwards_is_contiguous_too() -> None:
    read = only(accesses_of(backwards), "x")
    assert (read.pattern, read.strides[0].elements, read.overfetch) == ("contiguous", -1, 1)


def test_levels_are_those_of_the_machine() -> None:
    levels = cache_levels(MACHINE)
    assert levels["L1"] == MACHINE.l1d_bytes
    assert list(levels.values()) == sorted(levels.values())


def test_values_that_json_has() -> None:
    found = only(accesses_of(column_sums), "x").to_dict()
    assert found["strides"][1] == {
        "name": "i",
        "kind": "serial",
        "extent": 1024.0,
        "elements": 512.0,
        "bytes": 2048.0,
    }
    assert found["overfetch"] == pytest.approx(16)
