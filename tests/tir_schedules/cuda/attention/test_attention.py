"""Attention on a GPU: numbers in the emulator, the instructions of the code, what is refused."""

import random
from dataclasses import replace

import numpy as np
import pytest
from attention_cases import FLOAT32_ATTENTIONS, WARP_ATTENTIONS, check, scheduled_attention
from attention_kernels import AttentionCase
from cuda_kernels import cuda_source, scheduled
from lowering import f32, kernel_of, run
from machines import GPU, MACHINE
from tvm import relax

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.attention.attention import Attention, refusal
from tvm_ext.tir_schedules.operators.attention import ATTRIBUTE, AttentionCompute
from tvm_ext.tir_schedules.schedule_kernels import schedule_by_fallback
from tvm_ext.tir_schedules.template import SampledDecisions

QUICK = (
    "odd lengths",
    "causal",
    "odd sizes",
    "added mask",
    "no key seen",
    "grouped",
    "packed",
    "split mask",
)


def test_numbers_on_tensor_cores() -> None:
    check({name: WARP_ATTENTIONS[name] for name in QUICK})


@pytest.mark.slow
def test_numbers_of_all_forms() -> None:
    check(WARP_ATTENTIONS, seeds=(0, 1))


def test_numbers_of_float32() -> None:
    check(FLOAT32_ATTENTIONS, seeds=(0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [32, 40, 64, 80, 96, 128, 256])
def test_numbers_of_head_sizes(depth: int) -> None:
    cases = {
        "longer tiles": AttentionCase(1, 1, 40, 70, depth, decided={"keys": 64}),
        "default heuristic": AttentionCase(1, 2, 100, 150, depth, causal=50),
        "grouped": AttentionCase(2, 4, 3, 300, depth, group=4),
        "float32": AttentionCase(1, 2, 40, 70, depth, dtype="float32", causal=30),
    }
    check(cases, seeds=(0, 3))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_numbers_of_drawn_decisions(dtype: str) -> None:
    plain = AttentionCase(1, 4, 40, 90, 16, 24, 2, dtype, causal=50)
    cases = {}
    for seed in range(5):
        drawn = SampledDecisions(random.Random(seed))
        scheduled(Attention(), plain.function(), GPU, drawn)
        cases[str(drawn.free())] = replace(plain, decided=drawn.free())
    assert len(cases) > 1
    check(cases)


def test_code_on_tensor_cores() -> None:
    source = cuda_source(scheduled_attention(AttentionCase(2, 4, 256, 256, 64)))
    assert source.count("__global__") == 2, "one kernel, declared and defined"
    walk = source.split("for (int step", 1)[1]
    assert walk.count("__syncthreads()") == 1, "one barrier for a tile of keys"
    assert "cp_async_legacy_cg_16" in walk
    assert "mma.sync.aligned.m16n8k16" in walk
    assert "ldmatrix.sync.aligned.m8n8.x4.trans" in walk
    assert "__shfl_xor_sync" in walk
    assert "(half2*)(attention_ptr" in source.replace("*(", "(")


def test_tiles_ahead_of_the_diagonal_are_skipped() -> None:
    plain, causal = (
        cuda_source(scheduled_attention(AttentionCase(8, 8, 1024, 1024, 64, causal=c)))
        for c in (None, 0)
    )
    ends = [source.split("step < ", 1)[1].split(";", 1)[0] for source in (plain, causal)]
    assert ends[0].isdigit()
    assert "blockIdx.x" in ends[1]


def test_keys_are_split_where_there_are_few_blocks() -> None:
    few, many = AttentionCase(1, 8, 1, 8192, 128, group=4), AttentionCase(64, 8, 64, 512, 64)
    assert cuda_source(scheduled_attention(few)).count("__global__") == 4, "two kernels"
    assert cuda_source(scheduled_attention(many)).count("__global__") == 2


def test_the_function_is_right_under_a_generic_schedule() -> None:
    func = AttentionCase(2, 4, 9, 11, 6, 5, 2, "float32", "bshd", causal=2).function()
    generic, choice = schedule_by_fallback(func, MACHINE)
    assert choice.schedule != "attention"
    plain, found = run({"plain": func, "generic": generic}).values()
    for wanted, array in zip(plain, found, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-6)


def test_the_attribute_says_all() -> None:
    compute = WARP_ATTENTIONS["split mask"].compute
    assert AttentionCompute.from_attribute(compute.to_attribute()) == compute
    assert ATTRIBUTE in WARP_ATTENTIONS["causal"].function().attrs


CASE = AttentionCase(1, 2, 16, 16, 16)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (replace(CASE, axes="bhds"), "not neighbours"),
        (replace(CASE, depth=4096), "no tile fits"),
        (AttentionCase(70_000, 1, 1, 1, 16), "no tile fits"),
    ],
)
def test_refusals(case: AttentionCase, reason: str) -> None:
    assert reason in refusal(case.function(), GPU)


def test_other_functions_are_refused() -> None:
    func = kernel_of(relax.op.matmul, f32(16, 16), f32(16, 16))
    found = apply_template(Attention(), func, GPU)
    assert isinstance(found, NotApplicable)
    assert "not a fused attention" in found.reason
