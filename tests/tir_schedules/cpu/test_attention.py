"""Attention as one kernel on a CPU: numbers, what is decided, and what is left."""

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from attention_kernels import DROP, KEEP, AttentionCase, assert_computes, normal, seen
from cpu_kernels import refusal_of, scheduled
from decision_cases import assert_defaults_give_the_default_schedule, check_random_numbers
from lowering import f32, kernel_of
from machines import MACHINE, NARROW, _cpu
from symbolic_extents import call
from thoroughness import one_in, some_of
from tvm import relax, tirx
from unoptimised import HOST, built

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.cpu.attention.attention import CpuAttention, decide_attention
from tvm_ext.tir_schedules.cpu.vector_math.rewrite import with_vector_math
from tvm_ext.tir_schedules.operators.attention import Mask
from tvm_ext.tir_schedules.operators.attention_problem import read_problem
from tvm_ext.tir_schedules.statements import FlatViews
from tvm_ext.tir_schedules.template import FixedDecisions

TEMPLATE = CpuAttention()
ADD = Mask("add", "bhqk")
PARTS_OF_KEYS = {"keys": 32}
PARTS_ON_THREADS = {"keys": 32, "threads": 1}


def case(*sizes: int, **others: Any) -> AttentionCase:
    return AttentionCase(*sizes, dtype="float32", **others)


CASES = {
    "whole tiles": case(1, 2, 12, 64, 16),
    "odd sizes": case(2, 3, 17, 70, 20, 36),
    "fewer keys than a vector": case(1, 1, 5, 3, 3),
    "positions first": case(2, 2, 19, 33, 16, axes="bshd"),
    "shared heads": case(2, 4, 7, 40, 16, group=2),
    "causal": case(1, 2, 50, 50, 16, causal=0),
    "causal behind": case(1, 2, 20, 30, 16, causal=10),
    "causal without keys": case(1, 1, 20, 20, 16, causal=-5),
    "added to all rows": case(2, 2, 9, 90, 16, masks=[(ADD, normal(2, 1, 1, 90))]),
    "two masks": case(
        1, 2, 9, 50, 16, masks=[(ADD, normal(1, 2, 9, 50)), (KEEP, seen(1, 1, 9, 50))]
    ),
    "no key seen": case(1, 2, 20, 20, 16, masks=[(KEEP, seen(1, 2, 20, 20, blind=True))]),
    "zeros": case(1, 2, 20, 20, 16, masks=[(KEEP, seen(1, 2, 20, 20, blind=True))], zero_rows=True),
    "lowest number": case(1, 1, 20, 20, 16, masks=[(DROP, ~seen(1, 1, 20, 20, blind=True))]),
    "parts of keys": case(1, 2, 70, 100, 16, decided=PARTS_OF_KEYS),
    "causal parts": case(1, 2, 150, 150, 24, causal=0, decided=PARTS_OF_KEYS),
    "no key seen in parts": case(
        *(1, 2, 20, 100, 16),
        masks=[(KEEP, seen(1, 2, 20, 100, blind=True))],
        decided=PARTS_OF_KEYS,
    ),
    "zeros in parts": case(
        *(1, 2, 20, 100, 16),
        masks=[(KEEP, seen(1, 2, 20, 100, blind=True))],
        zero_rows=True,
        decided=PARTS_OF_KEYS,
    ),
    "two tasks for a head": case(1, 1, 40, 30, 16, decided={"threads": 1, "parts": 2, "rows": 4}),
    "float16": AttentionCase(1, 2, 20, 30, 24, 12),
    "float16 in parts": AttentionCase(1, 2, 20, 100, 24, decided=PARTS_OF_KEYS),
    "one query": case(2, 2, 1, 100, 16),
    "three queries of shared heads": case(
        2, 4, 3, 37, 20, 36, group=2, masks=[(ADD, normal(2, 1, 3, 37))]
    ),
    "one query of seven heads": case(2, 7, 1, 45, 20, group=7),
    "two queries, causal, odd depth": case(1, 3, 2, 90, 15, 17, group=3, causal=88),
    "parts of the keys of one query": case(1, 3, 1, 150, 16, group=3, decided=PARTS_ON_THREADS),
    "no key seen by one query": case(
        *(1, 2, 1, 150, 16),
        masks=[(KEEP, seen(1, 2, 1, 150, blind=True))],
        zero_rows=True,
        decided=PARTS_ON_THREADS,
    ),
    "one query of float16": AttentionCase(1, 2, 1, 30, 24, 12),
    "sink": case(1, 2, 12, 64, 16, sink=normal(1, 2, 1, 1)),
    "sink in parts": case(
        *(2, 2, 70, 100, 16), causal=30, sink=normal(2, 2, 1, 1), decided=PARTS_OF_KEYS
    ),
    "sink of parts of the keys of one query": case(
        *(1, 3, 1, 150, 16), group=3, sink=normal(3, 1, 1), decided=PARTS_ON_THREADS
    ),
    "sink alone seen": case(
        *(1, 2, 20, 100, 16),
        masks=[(KEEP, seen(1, 2, 20, 100, blind=True))],
        sink=normal(1, 1, 1, 1),
        decided=PARTS_OF_KEYS,
    ),
    "sink alone seen by one query": case(
        *(1, 2, 1, 30, 16),
        masks=[(KEEP, np.zeros((1, 2, 1, 30), bool))],
        sink=normal(1, 2, 1, 1),
    ),
    "sink of float16": AttentionCase(1, 2, 1, 30, 24, 12, sink=normal(2, 1, 1, dtype="float16")),
    "one row": case(1, 1, 9, 20, 16, decided={"rows": 1, "columns": 16}),
}

NARROW_TOO = some_of(CASES)


def kernel(one: AttentionCase, machine: CpuDescription = MACHINE) -> tirx.PrimFunc:
    return scheduled(TEMPLATE, one.function(), machine, FixedDecisions(one.decided, lenient=True))


def finished(func: tirx.PrimFunc) -> tirx.PrimFunc:
    return with_vector_math(func).func


@pytest.mark.extended
@pytest.mark.parametrize("name", one_in(4, CASES))
def test_numbers(name: str) -> None:
    one = CASES[name]
    machines = {"wide": MACHINE.with_cores(2)}
    if name in NARROW_TOO:
        machines["narrow"] = NARROW.with_cores(1)
    library = built({key: finished(kernel(one, machine)) for key, machine in machines.items()})
    for key in machines:
        assert_computes(library[key], one, f"{name}, {key}")


def test_what_is_not_a_number_stays_in_its_row() -> None:
    one = case(1, 1, 8, 40, 16, decided=PARTS_OF_KEYS)
    query, key, value = one.arrays()
    query[0, 0, 3, 5] = math.nan
    result = np.zeros_like(query)
    tensors = [tvm.runtime.tensor(array) for array in (query, key, value, result)]
    built({"main": finished(kernel(one))})["main"](*tensors)
    found = np.isnan(tensors[-1].numpy()).all(-1)[0, 0]
    assert found.tolist() == [row == 3 for row in range(8)]
    assert not np.isnan(np.delete(tensors[-1].numpy(), 3, axis=2)).any()


# With masks, whose axes of any size are given by letters.
SYMBOLIC: dict[str, tuple[AttentionCase, list[tuple[Mask, str]]]] = {
    "plain": (case(1, 2, 1, 1, 16), []),
    "shared heads, positions first": (case(1, 4, 1, 1, 20, 12, group=2, axes="bshd"), []),
    "one shared head": (case(1, 3, 1, 1, 16, group=3), [(KEEP, "b11k")]),
    "causal": (case(1, 1, 1, 1, 16, causal=2), []),
    "added to all rows": (case(1, 2, 1, 1, 16), [(ADD, "b11k")]),
    "zeros": (case(1, 1, 1, 1, 8, zero_rows=True), [(KEEP, "11qk")]),
    "sink": (case(1, 2, 1, 1, 16, sink=normal(1, 2, 1, 1)), [(KEEP, "11qk")]),
}
# Batch, queries and keys: around tiles of rows, vectors, tiles of columns and parts of keys.
RUNS = [(0, 3, 3), (1, 0, 4), (1, 4, 0), (1, 1, 1), (2, 1, 77), (2, 3, 16), (1, 4, 15), (2, 5, 64)]
RUNS += [(1, 67, 130), (1, 130, 460)]


def at_sizes(name: str, batch: Any, queries: Any, keys: Any) -> AttentionCase:
    """A case of other sizes, which may be symbolic; masks are numbers for numbers."""
    one, given = SYMBOLIC[name]
    sizes = {"b": batch, "q": queries, "k": keys, "1": 1}
    masks = []
    for mask, letters in given:
        shape = [sizes[letter] for letter in letters]
        draw = normal if mask.kind == "add" else seen
        masks.append((mask, draw(*shape) if isinstance(batch, int) and keys else shape))
    return replace(one, batch=batch, queries=queries, keys=keys, masks=masks)


def operands_of(one: AttentionCase) -> tuple[list[Any], list[str]]:
    """The shapes and types of the operands of a case whose masks are shapes."""
    sinks = [x.shape for x in (one.sink,) if x is not None]
    types = ["float32" if mask.kind == "add" else "bool" for mask, _ in one.masks]
    shapes = [*one.shapes(), *(shape for _, shape in one.masks), *sinks]
    return shapes, ["float32"] * 3 + types + ["float32"] * len(sinks)


@pytest.mark.extended
@pytest.mark.parametrize("name", one_in(4, SYMBOLIC))
def test_symbolic_numbers(name: str) -> None:
    """Beside memory that may not be touched."""
    whole = at_sizes(name, *(tirx.Var(letter, "int64") for letter in "bqk"))
    shapes, types = operands_of(whole)
    func = whole.compute.function(shapes, types)
    # Parts of keys that the sizes below have several of.
    made = scheduled(TEMPLATE, func, MACHINE.with_cores(2), FixedDecisions({"keys": 128}))
    function = built({"main": finished(made)})["main"]
    for sizes in RUNS:
        one = at_sizes(name, *sizes)
        if not one.keys and one.masks:
            continue
        arrays = one.arrays()
        found = call(function, arrays, [*one.shapes()[0][:-1], one.width or one.depth])
        wanted = one.expected(*arrays[:3]) if one.keys else np.zeros(found.shape)
        np.testing.assert_allclose(found, wanted, atol=2e-5, rtol=2e-5, err_msg=f"{name} {sizes}")


@pytest.mark.extended
@pytest.mark.parametrize("name", one_in(4, SYMBOLIC))
def test_keys_in_buffers_with_room_for_more(name: str) -> None:
    """What lies behind the last key is NaN, and is not read."""
    whole = at_sizes(name, *(tirx.Var(letter, "int64") for letter in "bqk"))
    shapes, types = operands_of(whole)
    room = tirx.Var("room", "int64")
    for place in (1, 2):
        shapes[place] = [room if size is whole.keys else size for size in shapes[place]]
    func = replace(whole.compute, held=True).function(shapes, types)
    made = scheduled(TEMPLATE, func, MACHINE.with_cores(2), FixedDecisions({"keys": 128}))
    function = built({"main": finished(made)})["main"]
    for sizes in [run for run in RUNS if all(run)]:
        one = at_sizes(name, *sizes)
        query, key, value, *masks = one.arrays()
        wanted = one.expected(query, key, value)
        axis = one.axes.index("s")
        widths = [(0, 7 if n == axis else 0) for n in range(4)]
        held = [np.pad(array, widths, constant_values=np.nan) for array in (key, value)]
        result = tvm.runtime.tensor(np.full(wanted.shape, 7, "float32"))
        tensors = [tvm.runtime.tensor(array) for array in (query, *held, *masks)]
        function(*tensors, one.keys, result)
        found = result.numpy()
        np.testing.assert_allclose(found, wanted, atol=2e-5, rtol=2e-5, err_msg=f"{name} {sizes}")


def decided(one: AttentionCase, machine: CpuDescription = MACHINE) -> Any:
    return decide_attention(read_problem(one.function(), FlatViews(symbolic_sizes=True)), machine)


def test_keys_that_fit_are_taken_at_once() -> None:
    assert decided(case(1, 2, 128, 128, 64)).keys == 128
    tiles = decided(case(1, 2, 4096, 4096, 64))
    assert tiles.keys < 4096
    assert tiles.keys % tiles.columns == 0
    assert 4 * tiles.rows * tiles.keys <= MACHINE.l1d_bytes
    assert 8 * 64 * tiles.keys <= MACHINE.l2_bytes
    assert tiles.block > tiles.rows


def test_threads_share_the_rows_of_few_heads() -> None:
    machine = MACHINE.with_cores(4)
    assert decided(case(1, 8, 512, 512, 64), machine).parts == 1
    assert decided(case(1, 1, 512, 512, 64), machine).parts == 4
    assert not decided(case(1, 1, 8, 8, 8), machine).threads


def test_threads_share_the_keys_of_few_rows() -> None:
    """Where heads are too few for the cores, and each part of the keys is long enough."""
    machine = MACHINE.with_cores(4)

    def few(heads: int, keys: int = 4096, group: int = 1) -> Any:
        return decided(case(1, heads, 1, keys, 64, group=group), machine).few

    assert [few(heads).parts for heads in (1, 2, 3, 4, 8)] == [4, 2, 4, 1, 1]
    assert few(8, group=4).parts == 2
    assert few(1, keys=few(1).keys).parts == 1
    # The heads that share keys pass together, as many as there are registers for.
    assert [few(12, group=group).rows for group in (1, 3, 4, 6, 12)] == [1, 3, 4, 3, 4]
    assert decided(case(1, 8, 4, 128, 64), machine).few is None


def test_the_whole_matrix_of_scores_is_nowhere() -> None:
    func = kernel(case(1, 2, 512, 512, 64))
    arrays = [statement.buffer for statement in nodes(func.body, tirx.AllocBuffer)]
    # The copy of one head's keys is the largest.
    assert max(math.prod(map(int, array.shape)) for array in arrays) == 512 * 64


def test_weights_take_the_shorter_exponential() -> None:
    """Which has no bound above."""
    bound = "T.float32(89.0)"
    assert bound not in finished(kernel(CASES["whole tiles"])).script()
    without = kernel(CASES["whole tiles"])
    plain = tirx.PrimFunc(without.params, without.body, without.ret_type)
    assert bound in finished(plain).script()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "multiply_add"),
    [
        ("avx512", r"vfmadd\w+ps\s+%zmm\d+, %zmm\d+, %zmm\d+"),
        ("avx2", r"vfmadd\w+ps\s+%ymm\d+, %ymm\d+, %ymm\d+"),
        ("aarch64-neon", r"fmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[\d\]|fmla\s+v\d+\.4s"),
    ],
)
def test_sums_stay_in_registers(target: str, multiply_add: str) -> None:
    machine = _cpu(target)
    one = case(1, 2, 96, 128, 64)
    tiles = decided(one, machine)
    final = finished(kernel(one, machine)).with_attr("global_symbol", "main")
    mod = tvm.compile(tvm.IRModule({"main": final}), target=machine.tvm_target())
    blocks = re.split(r"^\.?\w+:", str(mod.mod.inspect_source("asm")), flags=re.MULTILINE)
    sums = tiles.rows * tiles.columns // tiles.lanes
    inner = [block for block in blocks if len(re.findall(multiply_add, block)) >= sums]
    # The scores, and the product with the values.
    assert len(inner) >= 2
    # No call for each element.
    assert not any(re.search(r"\b(call|callq|bl)\s+_?expf", block) for block in blocks)


@pytest.mark.extended
def test_defaults() -> None:
    assert_defaults_give_the_default_schedule(TEMPLATE, CASES["odd sizes"].function(), MACHINE)


@pytest.mark.extended
def test_random_decisions() -> None:
    check_random_numbers(
        TEMPLATE, {"odd": CASES["odd sizes"].function()}, machine=HOST.with_cores(2)
    )


def test_what_is_left_alone() -> None:
    narrow = AttentionCase(1, 2, 20, 20, 16, dtype="bfloat16").function()
    assert refusal_of(TEMPLATE, narrow) == "a tensor is of bfloat16, not of float32 or float16"
    sums = kernel_of(relax.op.add, f32(8, 8), f32(8, 8))
    assert refusal_of(TEMPLATE, sums) == "it is not a fused attention"
