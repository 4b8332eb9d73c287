"""Attentions for the templates of GPUs, run in the emulator."""

from collections.abc import Mapping, Sequence
from typing import Any

from attention_kernels import DROP, KEEP, AttentionCase, assert_computes, normal, seen
from cuda_emulation import set_seed
from cuda_kernels import scheduled
from emulated_kernels import emulated
from machines import GPU
from tvm import tirx

from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.cuda.attention.attention import Attention
from tvm_ext.tir_schedules.operators.attention import Mask
from tvm_ext.tir_schedules.template import FixedDecisions, Template

INSTRUCTIONS_OF_WARPS = Attention()


def scheduled_attention(
    case: AttentionCase,
    machine: CudaDescription = GPU,
    template: Template = INSTRUCTIONS_OF_WARPS,
) -> tirx.PrimFunc:
    """The function of a case under a template."""
    return scheduled(template, case.function(), machine, FixedDecisions(case.decided))


def check(
    cases: Mapping[str, AttentionCase],
    seeds: Sequence[int] = (0,),
    machine: CudaDescription = GPU,
    template: Template = INSTRUCTIONS_OF_WARPS,
) -> None:
    """The CUDA code of every case, run in the emulator, computes what NumPy does."""
    made = {name: scheduled_attention(case, machine, template) for name, case in cases.items()}
    compare(cases, emulated(made, machine), seeds)


def compare(
    cases: Mapping[str, AttentionCase], kernels: Mapping[str, Any], seeds: Sequence[int]
) -> None:
    """The built kernels of some cases compute what NumPy does."""
    for name, case in cases.items():
        for seed in seeds:
            set_seed(seed)
            assert_computes(kernels[name], case, name)


SMALL_TILE = {"warps": 2, "keys": 16}


WARP_ATTENTIONS = {
    "odd lengths": AttentionCase(2, 1, 37, 41, 16, decided=SMALL_TILE),
    "two row tiles": AttentionCase(
        1, 1, 70, 33, 16, decided={"warps": 2, "row_tiles": 2, "keys": 32}
    ),
    "three stages": AttentionCase(1, 1, 20, 90, 16, decided={"warps": 1, "keys": 16, "stages": 3}),
    "causal": AttentionCase(1, 1, 50, 50, 16, causal=0, decided=SMALL_TILE),
    "causal behind": AttentionCase(1, 1, 20, 30, 16, causal=10, decided=SMALL_TILE),
    "causal without keys": AttentionCase(1, 1, 20, 20, 16, causal=-5, decided=SMALL_TILE),
    "filled up": AttentionCase(1, 2, 20, 20, 20, 12, axes="bshd", decided=SMALL_TILE),
    "odd sizes": AttentionCase(1, 2, 17, 20, 15, 9, decided={"warps": 1, "keys": 16}),
    "added mask": AttentionCase(
        2,
        2,
        20,
        30,
        16,
        dtype="bfloat16",
        masks=[(Mask("add", "bhqk"), normal(2, 1, 1, 30))],
        decided=SMALL_TILE,
    ),
    "no key seen": AttentionCase(1, 2, 20, 20, 16, masks=[(KEEP, seen(1, 2, 20, 20, blind=True))]),
    "zeros": AttentionCase(
        1, 2, 20, 20, 16, masks=[(KEEP, seen(1, 2, 20, 20, blind=True))], zero_rows=True
    ),
    "lowest number": AttentionCase(
        1, 1, 20, 20, 16, masks=[(DROP, ~seen(1, 1, 20, 20, blind=True))]
    ),
    "grouped": AttentionCase(1, 4, 18, 20, 16, group=2, decided={"warps": 1, "keys": 16}),
    "packed": AttentionCase(1, 4, 5, 40, 16, group=2, causal=35, decided={"keys": 16, "splits": 1}),
    "split keys": AttentionCase(2, 4, 1, 100, 16, 12, group=4, decided={"keys": 16, "splits": 3}),
    "split mask": AttentionCase(
        1,
        2,
        2,
        100,
        16,
        masks=[(KEEP, seen(1, 1, 2, 100, blind=True))],
        decided={"keys": 16, "splits": 3},
    ),
}


FLOAT32_ATTENTIONS = {
    "float32": AttentionCase(1, 2, 21, 19, 16, dtype="float32", causal=0, decided={"row_tiles": 2}),
    "float32 filled up": AttentionCase(1, 2, 9, 11, 10, 9, dtype="float32", axes="bshd"),
    "float32 split": AttentionCase(
        1, 4, 3, 70, 8, 16, 2, dtype="float32", causal=67, decided={"keys": 8, "splits": 3}
    ),
}
