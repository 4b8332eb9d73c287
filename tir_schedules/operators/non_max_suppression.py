"""Non-maximum suppression (NMS): what a kernel with the annotation computes, and its formula.

For each batch and class the boxes are taken by falling score; one stays when its score is above the
threshold, fewer have stayed than the limit, and it overlaps none of these by more than a ratio
(ONNX operator NonMaxSuppression, version 11).
"""

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx

# On the block of such a kernel: how its boxes are given, one of the two below.
ANNOTATION = "tvm_ext.box_suppression"
CORNERS, CENTERS = "corners", "centers"

# Its parameters, in their order: B batches of N boxes, C classes, at most K boxes of one that stay.
# boxes [B, N, 4], scores [B, C, N], order [B, C, N]: places by falling score; limit, overlap,
# threshold [1]; and its results kept [B, C, K]: places of the boxes that stay, taken [B, C]: their
# number.
PARAMETERS = ("boxes", "scores", "order", "limit", "overlap", "threshold", "kept", "taken")


def nms_of(func: tirx.PrimFunc) -> tuple[dict[str, Any], bool] | None:
    """The parameters by name, and whether boxes are given by centers; None for other kernels."""
    if not isinstance(func.body, s_tir.SBlockRealize):
        return None
    root = func.body.block
    for block in (root, getattr(root.body, "block", None)):
        if block is None or ANNOTATION not in block.annotations:
            continue
        params = [p for p in func.params if not isinstance(p.ty, tvm.ir.PrimType)]
        if len(params) != len(PARAMETERS):
            return None
        named = dict(zip(PARAMETERS, params, strict=True))
        return named, str(block.annotations[ANNOTATION]) == CENTERS
    return None


def corners(numbers: Sequence[tvm.ir.Expr], centered: bool) -> list[tvm.ir.Expr]:
    """Low ends of a box in both directions and its high ends, from its four numbers.

    The numbers are two opposite corners in any order, or a center and the sizes.
    """
    if centered:
        half = tirx.const(0.5, "float32")
        reach = [numbers[k + 2] * half for k in range(2)]
        low = [numbers[k] - reach[k] for k in range(2)]
        return [*low, *(numbers[k] + reach[k] for k in range(2))]
    low = [tirx.min(numbers[k], numbers[k + 2]) for k in range(2)]
    return [*low, *(tirx.max(numbers[k], numbers[k + 2]) for k in range(2))]


def overlap(first: Sequence[tvm.ir.Expr], second: Sequence[tvm.ir.Expr]) -> tvm.ir.Expr:
    """Intersection over union of two boxes by their corners; 0 where one of them has no area."""
    zero = tirx.const(0, "float32")
    inner = [
        tirx.max(tirx.min(first[k + 2], second[k + 2]) - tirx.max(first[k], second[k]), zero)
        for k in range(2)
    ]
    area_a, area_b = ((box[2] - box[0]) * (box[3] - box[1]) for box in (first, second))
    common = inner[0] * inner[1]
    union = area_a + area_b - common
    sound = tirx.all(area_a > zero, area_b > zero, union > zero)
    ratio = common / tirx.Select(sound, union, tirx.const(1, "float32"))
    return tirx.Select(sound, ratio, zero)
