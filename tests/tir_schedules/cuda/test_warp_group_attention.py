"""Attention by warp groups: numbers in the emulator, code, resources, and refusals."""

import math

import numpy as np
import pytest
from attention_cases import Case, check

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.attention_compute import Mask
from tvm_ext.tir_schedules.cuda.warp_group_attention import group_decision
from tvm_ext.tir_schedules.cuda.warp_group_attention.warp_group_attention import WarpGroupAttention

H200 = resolve_target("nvidia-h200")
assert isinstance(H200, GpuDescription)
TWO = H200.with_cores(2)
LOWEST = float(np.finfo("float32").min)
DRAW = np.random.default_rng(7)


@pytest.fixture
def small_sizes(monkeypatch):
    """Takes kernels that instructions of single warps would do as fast."""
    monkeypatch.setattr(group_decision, "best_seconds", lambda *_: math.inf)


def seen(*shape: int) -> np.ndarray:
    """A mask, of which one query sees no key."""
    mask = DRAW.random(shape) < 0.5
    mask[..., 0] = True
    mask[0, 0, shape[2] // 2] = False
    return mask


KEEP, DROP, ADD = Mask("keep", "bhqk", -math.inf), Mask("drop", "bhqk", LOWEST), Mask("add", "bhqk")
TILE = {"groups": 2, "keys": 64, "stages": 2}

CASES = {
    "one tile": Case(1, 1, 128, 64, 64, decided=TILE),
    "odd lengths": Case(1, 2, 200, 250, 64, decided=TILE),
    "lasting blocks": Case(2, 3, 140, 130, 32, decided={**TILE, "lasting": 1}),
    "blocks of one tile": Case(2, 2, 140, 130, 32, decided={**TILE, "lasting": 0, "turns": 0}),
    "three groups": Case(1, 2, 250, 200, 64, decided={**TILE, "groups": 3, "stages": 3}),
    "causal": Case(1, 2, 260, 260, 64, causal=0, decided=TILE),
    "causal, lasting": Case(1, 3, 260, 260, 64, causal=0, decided={**TILE, "lasting": 1}),
    "causal behind": Case(1, 1, 150, 250, 64, causal=100, decided=TILE),
    "causal without keys": Case(1, 1, 200, 200, 64, causal=-70, zero_rows=True, decided=TILE),
    "causal, no number": Case(1, 1, 200, 200, 64, causal=-70, decided=TILE),
    "wide": Case(1, 1, 130, 140, 128, dtype="bfloat16", decided={**TILE, "keys": 80}),
    "widest": Case(1, 1, 130, 140, 256, 256, decided={**TILE}),
    "other sizes": Case(1, 2, 130, 140, 40, 80, axes="bshd", decided=TILE),
    "narrow values": Case(1, 2, 130, 140, 72, 24, axes="bshd", decided=TILE),
    "one head": Case(2, 1, 130, 140, 64, axes="bsd", decided=TILE),
    "grouped": Case(2, 4, 130, 100, 64, group=2, decided=TILE),
    "grouped, causal": Case(1, 6, 130, 150, 64, group=2, causal=20, decided={**TILE, "lasting": 1}),
    "one head of keys": Case(2, 3, 130, 100, 64, group=3, decided=TILE),
    "bfloat16": Case(1, 1, 130, 200, 64, dtype="bfloat16", causal=70, decided=TILE),
    "no key seen": Case(1, 2, 130, 70, 64, masks=[(KEEP, seen(1, 2, 130, 70))], decided=TILE),
    "zeros": Case(
        1, 2, 130, 70, 64, masks=[(KEEP, seen(1, 2, 130, 70))], zero_rows=True, decided=TILE
    ),
    "lowest number": Case(1, 1, 130, 70, 64, masks=[(DROP, ~seen(1, 1, 130, 70))], decided=TILE),
    "added mask": Case(
        2,
        2,
        130,
        75,
        64,
        dtype="bfloat16",
        masks=[(ADD, DRAW.standard_normal((2, 1, 1, 75)).astype("float32"))],
        decided=TILE,
    ),
    "added mask of 16 bits": Case(
        1,
        2,
        130,
        150,
        128,
        causal=20,
        masks=[(ADD, DRAW.standard_normal((1, 2, 130, 150)).astype("float16"))],
        decided=TILE,
    ),
}


def test_numbers(small_sizes):
    check(CASES, (0, 1), TWO, WarpGroupAttention())
