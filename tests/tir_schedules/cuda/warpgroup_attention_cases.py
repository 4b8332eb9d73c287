"""Attentions for warpgroups, as many forms as the template knows."""

import math

import numpy as np
from attention_kernels import AttentionCase, normal

from tvm_ext.tir_schedules.cuda.warpgroup import warpgroup_attention_decision as group_decision
from tvm_ext.tir_schedules.operators.attention import Mask

LOWEST = float(np.finfo("float32").min)


def take_all(monkeypatch):
    """Lets the template take kernels that instructions of single warps would do as fast."""
    monkeypatch.setattr(group_decision, "best_seconds", lambda *_: math.inf)


def seen(*shape: int) -> np.ndarray:
    """A mask, of which one query sees no key."""
    mask = np.random.default_rng(7).random(shape) < 0.5
    mask[..., 0] = True
    mask[0, 0, shape[2] // 2] = False
    return mask


KEEP, DROP, ADD = Mask("keep", "bhqk", -math.inf), Mask("drop", "bhqk", LOWEST), Mask("add", "bhqk")


TILE = {"groups": 2, "keys": 64, "stages": 2}


WARPGROUP_ATTENTIONS = {
    "one tile": AttentionCase(1, 1, 128, 64, 64, decided=TILE),
    "odd lengths": AttentionCase(1, 2, 200, 250, 64, decided=TILE),
    "lasting blocks": AttentionCase(2, 3, 140, 130, 32, decided={**TILE, "lasting": 1}),
    "blocks of one tile": AttentionCase(
        2, 2, 140, 130, 32, decided={**TILE, "lasting": 0, "turns": 0}
    ),
    "three groups": AttentionCase(1, 2, 250, 200, 64, decided={**TILE, "groups": 3, "stages": 3}),
    "causal": AttentionCase(1, 2, 260, 260, 64, causal=0, decided=TILE),
    "causal, lasting": AttentionCase(1, 3, 260, 260, 64, causal=0, decided={**TILE, "lasting": 1}),
    "causal, pairs": AttentionCase(1, 3, 400, 420, 64, causal=20, decided={**TILE, "lasting": 1}),
    "causal, one pair": AttentionCase(1, 1, 200, 210, 64, causal=0, decided={**TILE, "lasting": 1}),
    "causal behind": AttentionCase(1, 1, 150, 250, 64, causal=100, decided=TILE),
    "causal without keys": AttentionCase(
        1, 1, 200, 200, 64, causal=-70, zero_rows=True, decided=TILE
    ),
    "causal, no number": AttentionCase(1, 1, 200, 200, 64, causal=-70, decided=TILE),
    "wide": AttentionCase(1, 1, 130, 140, 128, dtype="bfloat16", decided={**TILE, "keys": 80}),
    "widest": AttentionCase(1, 1, 130, 140, 256, 256, decided={**TILE}),
    "other sizes": AttentionCase(1, 2, 130, 140, 40, 80, axes="bshd", decided=TILE),
    "narrow values": AttentionCase(1, 2, 130, 140, 72, 24, axes="bshd", decided=TILE),
    "grouped": AttentionCase(2, 4, 130, 100, 64, group=2, decided=TILE),
    "grouped, causal": AttentionCase(
        1, 6, 130, 150, 64, group=2, causal=20, decided={**TILE, "lasting": 1}
    ),
    "one head of keys": AttentionCase(2, 3, 130, 100, 64, group=3, decided=TILE),
    "bfloat16": AttentionCase(1, 1, 130, 200, 64, dtype="bfloat16", causal=70, decided=TILE),
    "no key seen": AttentionCase(
        1, 2, 130, 70, 64, masks=[(KEEP, seen(1, 2, 130, 70))], decided=TILE
    ),
    "zeros": AttentionCase(
        1, 2, 130, 70, 64, masks=[(KEEP, seen(1, 2, 130, 70))], zero_rows=True, decided=TILE
    ),
    "lowest number": AttentionCase(
        1, 1, 130, 70, 64, masks=[(DROP, ~seen(1, 1, 130, 70))], decided=TILE
    ),
    "added mask": AttentionCase(
        2,
        2,
        130,
        75,
        64,
        dtype="bfloat16",
        masks=[(ADD, normal(2, 1, 1, 75))],
        decided=TILE,
    ),
    "added mask of 16 bits": AttentionCase(
        1,
        2,
        130,
        150,
        128,
        causal=20,
        masks=[(ADD, normal(1, 2, 130, 150, dtype="float16"))],
        decided=TILE,
    ),
}
