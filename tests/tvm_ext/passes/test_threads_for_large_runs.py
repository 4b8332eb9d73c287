"""Loops of symbolic size have threads in large runs only, and their code is there once."""

import re

import numpy as np
import onnx
import pytest
import tvm
from small_models import model, node, rand, value
from tvm import tirx
from tvm.script import tirx as T
from tvm.sym import Analyzer
from unoptimised import HOST

import tvm_ext
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.cpu.parallel_vectorize import PARALLEL_GAIN
from tvm_ext.tir_schedules.cpu.thread_choice import CONDITION, with_thread_choice
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels

MACHINE = HOST.with_cores(2)


@T.prim_func(s_tir=True)
def doubled(x: T.handle, y: T.handle) -> None:
    n = T.int64()
    a, b = T.match_buffer(x, (n, 8), "float32"), T.match_buffer(y, (n, 8), "float32")
    for i in T.parallel(n):
        for j in range(8):
            b[i, j] = a[i, j] * T.float32(2)


def test_a_run_decides() -> None:
    found = with_thread_choice(doubled, MACHINE)
    assert (found.loops, found.left) == (1, 0)
    lines = [line.strip() for line in found.func.script().splitlines() if "n" in line]
    (choice,) = [line for line in lines if line.startswith("T.attr(")]
    (loop,) = [line for line in lines if line.startswith("for i in")]
    assert "n" in choice.split("tvm_ext.threads_if")[1]
    assert loop.startswith("for i in T.parallel(n")
    assert with_thread_choice(found.func, MACHINE).loops == 0


@T.prim_func(private=True, s_tir=True)
def copied(x: T.handle, y: T.handle) -> None:
    n = T.int64()
    a, b = T.match_buffer(x, (n, 64), "float32"), T.match_buffer(y, (n, 64), "float32")
    for i in T.parallel(n):
        for j in T.vectorized(64):
            b[i, j] = a[i, j]


def _has_threads(func: tirx.PrimFunc, rows: int) -> bool:
    """Whether the loop of a kernel runs on threads for this many rows."""
    found = with_thread_choice(func, MACHINE).func
    (condition,) = [
        one.value for one in nodes(found.body, tirx.AttrStmt) if one.attr_key == CONDITION
    ]
    (size,) = tirx.analysis.undefined_vars(condition)
    return bool(Analyzer().simplify(substitute(condition, {size: tirx.const(rows, "int64")})))


def test_what_is_read_and_written_counts() -> None:
    nbytes = PARALLEL_GAIN * MACHINE.parallel_overhead_us * MACHINE.core_memory_gbs * 1e3

    # A row is read and written; lines of 64 bytes are counted in whole cycles.
    assert _has_threads(copied, round(1.1 * nbytes / 512))
    assert not _has_threads(copied, round(0.9 * nbytes / 512))


@T.prim_func(private=True, s_tir=True)
def looked_up(x: T.handle, t: T.handle, y: T.handle) -> None:
    n = T.int64()
    a, places = T.match_buffer(x, (64,), "uint8"), T.match_buffer(t, (64,), "int64")
    b = T.match_buffer(y, (n, 64), "uint8")
    for i in T.parallel(n):
        for j in T.vectorized(64):
            b[i, j] = a[places[j]]


@T.prim_func(private=True, s_tir=True)
def repeated(x: T.handle, y: T.handle) -> None:
    n = T.int64()
    a, b = T.match_buffer(x, (64,), "uint8"), T.match_buffer(y, (n, 64), "uint8")
    for i in T.parallel(n):
        for j in T.vectorized(64):
            b[i, j] = a[j]


def test_a_vector_of_gathered_elements_is_as_many_statements() -> None:
    cycles = PARALLEL_GAIN * MACHINE.parallel_overhead_us * MACHINE.clock_ghz * 1e3
    rows = round(1.1 * cycles / 64)
    assert _has_threads(looked_up, rows)
    assert not _has_threads(repeated, rows)


@T.prim_func(private=True, s_tir=True)
def cut(x: T.handle, y: T.handle) -> None:
    n = T.int64()
    a, b = T.match_buffer(x, (8,), "uint8"), T.match_buffer(y, (n, 8), "uint8")
    for i in T.parallel(n):
        for j in range(8):
            b[i, j] = T.shift_right(a[j], T.uint8(4)) & T.uint8(15)


def test_operations_on_bits_count() -> None:
    """Two of them take as long as a multiplication and an addition."""
    cycles = PARALLEL_GAIN * MACHINE.parallel_overhead_us * MACHINE.clock_ghz * 1e3
    assert _has_threads(cut, round(1.1 * cycles / 16))
    assert not _has_threads(cut, round(0.9 * cycles / 16))


def built(func: tirx.PrimFunc) -> tvm.runtime.Executable:
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return compile_kernels(mod, MACHINE.tvm_target())


def test_the_body_of_a_loop_is_there_once() -> None:
    code = built(with_thread_choice(doubled, MACHINE).func).mod.inspect_source("ll")
    functions = re.split(r"^define ", code, flags=re.MULTILINE)[1:]
    (body,) = [text for text in functions if re.search(r" = f(add|mul) ", text)]
    assert "main_range_0" in body.split("(")[0]


@pytest.mark.parametrize("rows", [0, 1, 5, 63, 65, 4000, 20000])
def test_all_turns_are_taken(rows: int) -> None:
    x = rand(rows, 8)
    y = tvm.runtime.tensor(np.zeros_like(x))
    built(with_thread_choice(doubled, MACHINE).func)["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), x * 2)


@T.prim_func(private=True, s_tir=True)
def twice(x: T.handle, y: T.handle) -> None:
    n = T.int64()
    a, b = T.match_buffer(x, (n, 8), "float32"), T.match_buffer(y, (n, 8), "float32")
    kept = T.sblock_alloc_buffer((n, 8))
    for i in T.parallel(n):
        for j in range(8):
            with T.sblock("first"):
                row, column = T.axis.remap("SS", [i, j])
                kept[row, column] = a[row, column] * T.float32(2)
        for j in range(8):
            with T.sblock("second"):
                row, column = T.axis.remap("SS", [i, j])
                b[row, column] = kept[row, column] + T.float32(1)


@T.prim_func(private=True, s_tir=True)
def through_a_line(x: T.handle, y: T.handle) -> None:
    n = T.int64()
    a, b = T.match_buffer(x, (n, 8), "float32"), T.match_buffer(y, (n, 8), "float32")
    for i in T.parallel(n):
        with T.sblock("row"):
            row = T.axis.spatial(n, i)
            line = T.sblock_alloc_buffer((8,))
            for j in range(8):
                with T.sblock("first"):
                    column = T.axis.spatial(8, j)
                    line[column] = a[row, column] * T.float32(2)
            for j in range(8):
                with T.sblock("second"):
                    column = T.axis.spatial(8, j)
                    b[row, column] = line[7 - column] + T.float32(1)


@T.prim_func(private=True, s_tir=True)
def in_two_loops(x: T.handle, y: T.handle) -> None:
    n = T.int64()
    a, b = T.match_buffer(x, (n, 8), "float32"), T.match_buffer(y, (n, 8), "float32")
    kept = T.sblock_alloc_buffer((n, 8))
    for i in T.parallel(n):
        for j in range(8):
            with T.sblock("first"):
                row, column = T.axis.remap("SS", [i, j])
                kept[row, column] = a[row, column] * T.float32(2)
    for i in T.parallel(n):
        for j in range(8):
            with T.sblock("second"):
                row, column = T.axis.remap("SS", [i, j])
                b[row, column] = kept[n - 1 - row, column] + T.float32(1)


@T.prim_func(private=True, s_tir=True)
def by_halves(x: T.handle, y: T.handle) -> None:
    n = T.int64()
    a, b = T.match_buffer(x, (n, 8), "float32"), T.match_buffer(y, (n, 8), "float32")
    for half in T.parallel(T.int64(2)):
        for i in range(T.max(T.min((n + 1) // 2, n - half * ((n + 1) // 2)), T.int64(0))):
            row = T.alloc_buffer((T.int64(8),))
            for j in range(8):
                row[j] = a[half * ((n + 1) // 2) + i, j] * T.float32(2)
            for j in range(8):
                b[half * ((n + 1) // 2) + i, j] = row[j] + T.float32(1)


@pytest.mark.parametrize(
    ("func", "loops", "order"),
    [
        (twice, 1, (slice(None), slice(None))),
        (through_a_line, 1, (slice(None), slice(None, None, -1))),
        (in_two_loops, 2, (slice(None, None, -1), slice(None))),
        (by_halves, 1, (slice(None), slice(None))),
    ],
)
@pytest.mark.parametrize("rows", [1, 6000])
def test_buffers_of_a_loop_are_its_own(
    func: tirx.PrimFunc, loops: int, order: tuple[slice, slice], rows: int
) -> None:
    found = with_thread_choice(func, MACHINE)
    assert (found.loops, found.left) == (loops, 0)
    x = rand(rows, 8)
    y = tvm.runtime.tensor(np.zeros_like(x))
    built(found.func)["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), x[order] * 2 + 1)


def dense() -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["m"], name="dense"), node("Relu", ["m"], ["y"])]
    return model(nodes, [value("x", ["n", 6])], [value("y", ["n", 4])], w=rand(6, 4))


def test_the_report_says_where() -> None:
    compiled = tvm_ext.compile(dense(), MACHINE)
    (record,) = [r for r in compiled.report.passes if r.name == "ThreadsForLargeRuns"]
    assert [d.applied for d in record.decisions] == [True]
    for rows in (1, 3000):
        x = rand(rows, 6)
        wanted = np.maximum(x @ rand(6, 4), 0)
        np.testing.assert_allclose(compiled.run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-6)
