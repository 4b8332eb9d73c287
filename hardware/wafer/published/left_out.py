"""Measurements that no model here covers, by the kernel's text, and why."""

import re

from tvm_ext.hardware.wafer.published.rows import PublishedRow

_REASONS: tuple[tuple[str, str, str], ...] = (
    (
        "whole language model",
        r"prefill|decode|\bllm\b|llama|qwen|token",
        "a figure of a whole model, with pipeline bubbles and operators other than matrix "
        "products: good for the order of grids, not for cycles of a kernel",
    ),
    (
        "multigrid",
        r"multigrid|v-cycle",
        "a composite of many levels that forwards in software on the coarse ones; times of its "
        "parts are not published",
    ),
    (
        "host copy",
        r"host-to-device|device-to-host|\bcop(y|ies)\b|h2d|d2h",
        "a copy from or to the host, of which one size over one channel was published",
    ),
    (
        "SUMMA",
        r"summa",
        "one size was published: a parameter fitted to it predicts nothing else, and those of the "
        "local GEMM tile give 14 % less",
    ),
    (
        "mesh GEMM",
        r"mesh[\s-]*gem[mv]|cannon",
        "latencies by grid were published as figures only, with no numbers to compare",
    ),
    (
        "single vector instruction",
        r"vector instruction",
        "the operation and the placement of its arrays in the memory banks are not recorded, and "
        "they decide between 0.5, 1 and 2 cycles an element",
    ),
    (
        "box stencil",
        r"\bbox",
        "no box stencil was among the published rows",
    ),
)


def left_out(row: PublishedRow) -> tuple[str, str] | None:
    """The name of what a row is, and why no model covers it; None for a row that one may cover."""
    kernel = row.kernel.lower()
    for name, text, reason in _REASONS:
        if re.search(text, kernel):
            return name, reason
    return None
