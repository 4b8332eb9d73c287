"""Ultralytics: detectors, segmenters, pose and boxes that turn, from their descriptions."""

from collections.abc import Callable
from typing import Any

from .entry import Entry, floats

DESCRIPTIONS = (
    "yolov5n.yaml",
    "yolov8n.yaml",
    "yolov8n-seg.yaml",
    "yolov8n-pose.yaml",
    "yolov8n-obb.yaml",
    "yolov8n-cls.yaml",
    "yolov9t.yaml",
    "yolov10n.yaml",
    "yolo11n.yaml",
    "yolo11n-seg.yaml",
    "yolo12n.yaml",
    "rtdetr-l.yaml",
)
_SIZES = ({"batch": 2, "height": 64, "width": 64}, {"batch": 1, "height": 96, "width": 64})


def _builder(description: str) -> Callable[[], Any]:
    def build() -> Any:
        from ultralytics import RTDETR, YOLO

        model = (RTDETR if "rtdetr" in description else YOLO)(description).model
        for module in model.modules():
            # As the exporter of the library sets it.
            if hasattr(module, "export"):
                module.export, module.format, module.dynamic = True, "onnx", True
        return model.fuse()

    return build


ENTRIES = tuple(
    Entry(
        description.removesuffix(".yaml"),
        "Ultralytics",
        ("torchscript",),
        _builder(description),
        {"images": floats("batch", 3, "height", "width", low=0)},
        _SIZES,
    )
    for description in DESCRIPTIONS
)
