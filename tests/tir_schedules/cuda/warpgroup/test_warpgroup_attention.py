"""Attention by warpgroups: numbers in the emulator, code, resources, and refusals."""

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from attention_cases import check, scheduled_attention
from attention_kernels import AttentionCase, result_of
from cuda_kernels import needs_nvcc, scheduled, whole_source
from emulated_kernels import emulated
from lowering import f32, kernel_of
from machines import GPU
from tvm import relax
from warpgroup_attention_cases import ADD, KEEP, TILE, WARPGROUP_ATTENTIONS, take_all

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.compilers import find_nvcc
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.cuda.resources import parse_report
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.warpgroup import warpgroup_attention_decision as group_decision
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_attention import WarpgroupAttention
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_attention_decision import (
    WarpgroupAttentionLayout,
    decide_group_attention,
)
from tvm_ext.tir_schedules.operators.attention_problem import read_problem
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.statements import FlatViews
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, FixedDecisions, SampledDecisions

H200 = resolve_target("nvidia-h200")
assert isinstance(H200, CudaDescription)
TWO = H200.with_cores(2)


@pytest.fixture
def small_sizes(monkeypatch):
    """See ``take_all``."""
    take_all(monkeypatch)


QUICK = (
    "odd lengths",
    "lasting blocks",
    "causal, lasting",
    "grouped, causal",
    "other sizes",
    "zeros",
)


def test_numbers(small_sizes):
    check({name: WARPGROUP_ATTENTIONS[name] for name in QUICK}, (0,), TWO, WarpgroupAttention())


@pytest.mark.slow
@pytest.mark.parametrize("name", WARPGROUP_ATTENTIONS)
def test_numbers_of_all_forms(small_sizes, name):
    check({name: WARPGROUP_ATTENTIONS[name]}, (0, 1, 2), TWO, WarpgroupAttention())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_numbers_of_drawn_decisions(small_sizes, seed):
    case = AttentionCase(1, 4, 260, 330, 64, group=2, causal=70)
    drawn = SampledDecisions(random.Random(seed))
    scheduled(WarpgroupAttention(), case.function(), TWO, drawn)
    check({"drawn": replace(case, decided=drawn.free())}, (seed,), TWO, WarpgroupAttention())


def test_sections_of_heads_that_do_not_divide_them(small_sizes):
    case = AttentionCase(1, 6, 260, 130, 64, group=2, causal=0, decided={**TILE, "lasting": 0})
    head = 2 * 130 * 64 * 2
    machine = TWO.model_copy(update={"l2_bytes": 2 * 2 * head})
    problem = read_problem(case.function(), FlatViews())
    assert decide_group_attention(problem, machine, FixedDecisions(case.decided)).section == 2
    check({"sections": case}, (0,), machine, WarpgroupAttention())


def test_infinities_and_nan_stay_in_their_rows(small_sizes):
    case = AttentionCase(1, 1, 128, 100, 64, decided=TILE)
    query, key, value = case.arrays()
    query[0, 0, 5, 3], query[0, 0, 70, 0], key[0, 0, 99, 7] = np.nan, np.inf, -np.inf
    kernel = emulated({"k": scheduled_attention(case, TWO, WarpgroupAttention())}, TWO)["k"]
    found = result_of(kernel, case, query, key, value)
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = case.expected(query, key, value)
    assert 0 < np.isnan(wanted).any(-1).sum() < 128
    np.testing.assert_allclose(found, wanted, atol=4e-3, rtol=4e-3)


LARGE = AttentionCase(4, 16, 4096, 4096, 128)


def source_of(case, machine=H200):
    return whole_source(scheduled_attention(case, machine, WarpgroupAttention()), machine=machine)


def test_the_template_is_asked_before_instructions_of_single_warps():
    func = LARGE.function()
    for name in ("nvidia-h100", "nvidia-h200"):
        assert schedule_kernel(func, resolve_target(name))[1].schedule == "warpgroup attention"
    choice = schedule_kernel(func, GPU)[1]
    assert choice.schedule == "attention"
    assert "warpgroup attention: sm_80 has no instructions of warpgroups" in choice.refusals


def test_code_of_a_large_attention():
    source = source_of(replace(LARGE, causal=0))
    assert source.count("const __grid_constant__ CUtensorMap") == 3 * 2
    # Weights are the left operand from registers, values across their rows.
    assert re.search(r"%63\}, \{%64, %65, %66, %67\}, \"\s*\"%68, p, 1, 1, 1;", source)
    kernel = source.split("__launch_bounds__(384, 1)")[-1]
    assert "__syncthreads" not in kernel
    assert "*(uint4*)" in kernel
    loop = kernel.split("tvm_ext_turn_sync", 1)[1].split("tvm_ext_multiply_finish_0", 1)
    started, hidden = loop[0].split("tvm_ext_multiply_finish_1", 1)
    # Scores and weighted values are two groups; softmax runs while the second is under way.
    assert started.count("tvm_ext_multiply_commit") == 2
    assert "tvm_ext_multiply_registers" in started
    assert "tvm_ext_turn_arrive" in started
    assert hidden.count("exp2f(") == 128 // 2 + 2
    assert "tvm_ext_round_scores" in loop[1]


def report_of(source):
    nvcc = find_nvcc()
    assert nvcc is not None
    return nvcc.compile_with_report(source, "sm_90a")[1]


def assert_no_spills(case):
    report = report_of(source_of(case))
    # ptxas says so where it waits after each product, or cannot move registers between warps.
    assert "serialized" not in report
    assert "setmaxnreg" not in report
    (used,) = parse_report(report)
    assert used.spilled == used.stack == 0


@needs_nvcc
@pytest.mark.parametrize(("depth", "dtype"), [(64, "float16"), (128, "bfloat16")])
def test_nothing_spills_and_nothing_is_serialized(depth, dtype):
    assert_no_spills(replace(LARGE, depth=depth, dtype=dtype, causal=0))


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("depth", [16, 40, 64, 80, 96, 128, 160, 192, 256])
def test_nothing_spills_of_other_forms(small_sizes, depth, dtype):
    plain = replace(LARGE, depth=depth, dtype=dtype)
    tensor = np.broadcast_to(np.float32(0), (1, 1, 4096, 4096))
    assert_no_spills(plain)
    assert_no_spills(replace(plain, causal=0, masks=[(ADD, tensor)]))
    assert_no_spills(replace(plain, causal=0, masks=[(KEEP, tensor.astype(bool)), (ADD, tensor)]))


@pytest.mark.parametrize("depth", [64, 80, 128, 256])
@pytest.mark.parametrize("causal", [None, 0])
def test_tiles_fit(depth, causal):
    problem = read_problem(replace(LARGE, depth=depth, causal=causal).function(), FlatViews())
    tiles = decide_group_attention(problem, H200, DEFAULT_DECISIONS)
    layout = WarpgroupAttentionLayout(problem, tiles)
    assert layout.shared_bytes <= H200.dynamic_shared_memory_bytes
    few, many = group_decision.REGISTERS[tiles.groups]
    assert (few + tiles.groups * many) * 128 <= H200.registers_per_block
    assert tiles.lasting or causal == 0
    assert tiles.rows >= 128


def test_blocks_last_where_starts_would_take_long():
    short = replace(LARGE, batch=16, queries=512, keys=512, causal=0)
    problem = read_problem(short.function(), FlatViews())
    assert decide_group_attention(problem, H200, DEFAULT_DECISIONS).lasting


SMALL = AttentionCase(1, 2, 16, 16, 16)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (SMALL, "single warps are as fast"),
        (replace(LARGE, queries=1), "single warps are as fast"),
        (replace(LARGE, dtype="float32"), "operands are of float32"),
        (replace(LARGE, depth=100), "do not begin at multiples of 16 bytes"),
        (replace(LARGE, width=264), "more than 256"),
        (replace(LARGE, depth=1024, width=64), "no tile fits"),
    ],
)
def test_refusals(case, reason):
    refused = apply_template(WarpgroupAttention(), case.function(), H200)
    assert isinstance(refused, NotApplicable)
    assert reason in refused.reason


def test_other_functions_are_refused():
    func = kernel_of(relax.op.matmul, f32(16, 16), f32(16, 16))
    found = apply_template(WarpgroupAttention(), func, H200)
    assert isinstance(found, NotApplicable)
    assert "not a fused attention" in found.reason
