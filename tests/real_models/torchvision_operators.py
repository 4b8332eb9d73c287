"""Declares the compiled operators of torchvision, so that it loads beside any build of torch.

torchvision's wheels are built for one build of torch each; with another one its library does not
load, and the package refuses to be imported because its operators do not exist. The models are
plain Python, and an exporter writes the operators as ONNX's, so declarations, with kernels that
give right shapes and numbers while a model is traced, are enough. Import this before torchvision.
"""

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor",
)
_library = torch.library.Library("torchvision", "FRAGMENT")


def _suppressed(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    """Indices of the boxes that stay, best first."""
    order = torch.argsort(scores, descending=True)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    kept: list[torch.Tensor] = []
    while order.numel():
        best, order = order[0], order[1:]
        kept.append(best)
        low = torch.maximum(boxes[best, :2], boxes[order, :2])
        high = torch.minimum(boxes[best, 2:], boxes[order, 2:])
        common = (high - low).clamp(min=0).prod(1)
        order = order[common <= threshold * (areas[best] + areas[order] - common)]
    return torch.stack(kept) if kept else order


def _aligned(images: Any, rois: Any, *how: Any) -> Any:
    from torchvision.ops.roi_align import _roi_align

    # As it was written, and not compiled: a compiled function cannot be traced.
    return inspect.unwrap(_roi_align)(images, rois, *how)


def _has_operators() -> bool:
    return True


def _loads() -> bool:
    """Whether the library that the installed torchvision comes with fits this torch."""
    spec = importlib.util.find_spec("torchvision")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    try:
        for library in folder.glob("_C.*"):
            torch.ops.load_library(library)
    except OSError:
        return False
    return True


def _declare() -> None:
    for schema in _SCHEMAS:
        _library.define(schema)
    _library.impl("nms", _suppressed, "CPU")
    _library.impl("roi_align", _aligned, "CPU")
    import torchvision.extension

    torchvision.extension._has_ops = _has_operators
    # This module read the name before; its function of the same name hides it in the package.
    sys.modules["torchvision.ops.roi_align"]._has_ops = _has_operators  # type: ignore[attr-defined]


if not _loads():
    _declare()
