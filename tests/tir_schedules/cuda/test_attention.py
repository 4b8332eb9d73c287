"""Attention on a GPU: numbers in the emulator, the instructions of the code, what is refused."""

import random
from dataclasses import replace

import numpy as np
import pytest
from attention_cases import Case, check
from gpu_kernels import cuda_source, scheduled
from lowering import f32, kernel_of, run
from machines import GPU, MACHINE
from tvm import relax

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.attention.attention import Attention, refusal
from tvm_ext.tir_schedules.operators.attention import ATTRIBUTE, AttentionCompute, Mask
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.template import SampledDecisions

LOWEST = float(np.finfo("float32").min)
DRAW = np.random.default_rng(5)


def seen(*shape: int, blind: bool = False) -> np.ndarray:
    """A mask, of which one query sees no key when it is to be ``blind``."""
    mask = DRAW.random(shape) < 0.5
    mask[..., 0] = True
    if blind:
        mask[0, 0, shape[2] // 2] = False
    return mask


KEEP, DROP = Mask("keep", "bhqk", float("-inf")), Mask("drop", "bhqk", LOWEST)
SMALL = {"warps": 2, "keys": 16}

CASES = {
    "odd lengths": Case(2, 1, 37, 41, 16, decided=SMALL),
    "two row tiles": Case(1, 1, 70, 33, 16, decided={"warps": 2, "row_tiles": 2, "keys": 32}),
    "three stages": Case(1, 1, 20, 90, 16, decided={"warps": 1, "keys": 16, "stages": 3}),
    "causal": Case(1, 1, 50, 50, 16, causal=0, decided=SMALL),
    "causal behind": Case(1, 1, 20, 30, 16, causal=10, decided=SMALL),
    "causal without keys": Case(1, 1, 20, 20, 16, causal=-5, decided=SMALL),
    "filled up": Case(1, 2, 20, 20, 20, 12, axes="bshd", decided=SMALL),
    "odd sizes": Case(1, 2, 17, 20, 15, 9, decided={"warps": 1, "keys": 16}),
    "added mask": Case(
        2,
        2,
        20,
        30,
        16,
        dtype="bfloat16",
        masks=[(Mask("add", "bhqk"), DRAW.standard_normal((2, 1, 1, 30)).astype("float32"))],
        decided=SMALL,
    ),
    "no key seen": Case(1, 2, 20, 20, 16, masks=[(KEEP, seen(1, 2, 20, 20, blind=True))]),
    "zeros": Case(1, 2, 20, 20, 16, masks=[(KEEP, seen(1, 2, 20, 20, blind=True))], zero_rows=True),
    "lowest number": Case(1, 1, 20, 20, 16, masks=[(DROP, ~seen(1, 1, 20, 20, blind=True))]),
    "grouped": Case(1, 4, 18, 20, 16, group=2, decided={"warps": 1, "keys": 16}),
    "packed": Case(1, 4, 5, 40, 16, group=2, causal=35, decided={"keys": 16, "splits": 1}),
    "split keys": Case(2, 4, 1, 100, 16, 12, group=4, decided={"keys": 16, "splits": 3}),
    "split mask": Case(
        1,
        2,
        2,
        100,
        16,
        masks=[(KEEP, seen(1, 1, 2, 100, blind=True))],
        decided={"keys": 16, "splits": 3},
    ),
}
SINGLE = {
    "float32": Case(1, 2, 21, 19, 16, dtype="float32", causal=0, decided={"row_tiles": 2}),
    "float32 filled up": Case(1, 2, 9, 11, 10, 9, dtype="float32", axes="bshd"),
    "float32 split": Case(
        1, 4, 3, 70, 8, 16, 2, dtype="float32", causal=67, decided={"keys": 8, "splits": 3}
    ),
}


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
    check({name: CASES[name] for name in QUICK})


@pytest.mark.slow
def test_numbers_of_all_forms() -> None:
    check(CASES, seeds=(0, 1))


def test_numbers_of_float32() -> None:
    check(SINGLE, seeds=(0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [32, 40, 64, 80, 96, 128, 256])
def test_numbers_of_head_sizes(depth: int) -> None:
    cases = {
        "longer tiles": Case(1, 1, 40, 70, depth, decided={"keys": 64}),
        "default heuristic": Case(1, 2, 100, 150, depth, causal=50),
        "grouped": Case(2, 4, 3, 300, depth, group=4),
        "float32": Case(1, 2, 40, 70, depth, dtype="float32", causal=30),
    }
    check(cases, seeds=(0, 3))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_numbers_of_drawn_decisions(dtype: str) -> None:
    plain = Case(1, 4, 40, 90, 16, 24, 2, dtype, causal=50)
    cases = {}
    for seed in range(5):
        drawn = SampledDecisions(random.Random(seed))
        scheduled(Attention(), plain.function(), GPU, drawn)
        cases[str(drawn.free())] = replace(plain, decided=drawn.free())
    assert len(cases) > 1
    check(cases)


def test_code_on_tensor_cores() -> None:
    source = cuda_source(Case(2, 4, 256, 256, 64).scheduled())
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
        cuda_source(Case(8, 8, 1024, 1024, 64, causal=c).scheduled()) for c in (None, 0)
    )
    ends = [source.split("step < ", 1)[1].split(";", 1)[0] for source in (plain, causal)]
    assert ends[0].isdigit()
    assert "blockIdx.x" in ends[1]


def test_keys_are_split_where_there_are_few_blocks() -> None:
    few, many = Case(1, 8, 1, 8192, 128, group=4), Case(64, 8, 64, 512, 64)
    assert cuda_source(few.scheduled()).count("__global__") == 4, "two kernels"
    assert cuda_source(many.scheduled()).count("__global__") == 2


def test_the_function_is_right_under_a_generic_schedule() -> None:
    func = Case(2, 4, 9, 11, 6, 5, 2, "float32", "bshd", causal=2).function()
    generic, choice = schedule_kernel(func, MACHINE)
    assert choice.schedule != "attention"
    plain, found = run({"plain": func, "generic": generic}).values()
    for wanted, array in zip(plain, found, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-6)


def test_the_attribute_says_all() -> None:
    compute = CASES["split mask"].compute
    assert AttentionCompute.from_attribute(compute.to_attribute()) == compute
    assert ATTRIBUTE in CASES["causal"].function().attrs


CASE = Case(1, 2, 16, 16, 16)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (replace(CASE, axes="bhds"), "not neighbours"),
        (replace(CASE, depth=4096), "no tile fits"),
        (Case(70_000, 1, 1, 1, 16), "no tile fits"),
    ],
)
def test_refusals(case: Case, reason: str) -> None:
    assert reason in refusal(case.function(), GPU)


def test_other_functions_are_refused() -> None:
    func = kernel_of(relax.op.matmul, f32(16, 16), f32(16, 16))
    found = apply_template(Attention(), func, GPU)
    assert isinstance(found, NotApplicable)
    assert "not a fused attention" in found.reason
