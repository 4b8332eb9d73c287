"""torchvision: classifiers, segmentation, detection, video, optical flow."""

from collections.abc import Callable, Mapping
from typing import Any

from .entry import Entry, Input, Sizes, floats

IMAGE = {"images": floats("batch", 3, "height", "width")}
IMAGE_SIZES = ({"batch": 2, "height": 64, "width": 64}, {"batch": 1, "height": 96, "width": 64})

# Name of the function in torchvision.models, and what makes the model smaller.
CLASSIFIERS: Mapping[str, Mapping[str, Any]] = {
    "squeezenet1_1": {},
    "shufflenet_v2_x0_5": {},
    "mobilenet_v2": {"width_mult": 0.25},
    "mobilenet_v3_small": {},
    "mnasnet0_5": {},
    "googlenet": {"init_weights": False, "aux_logits": False},
    "regnet_y_400mf": {},
    "efficientnet_v2_s": {},
    "resnext50_32x4d": {},
}
SEGMENTERS = ("lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large", "fcn_resnet50")
DETECTORS: Mapping[str, Mapping[str, Any]] = {
    "ssdlite320_mobilenet_v3_large": {},
    "retinanet_resnet50_fpn": {},
    "fcos_resnet50_fpn": {},
    "fasterrcnn_mobilenet_v3_large_320_fpn": {},
    "maskrcnn_resnet50_fpn": {},
    "keypointrcnn_resnet50_fpn": {},
}


def _entry(
    name: str,
    build: Callable[[], Any],
    inputs: Mapping[str, Input] = IMAGE,
    sizes: tuple[Sizes, ...] = IMAGE_SIZES,
    exporters: tuple[str, ...] = ("torchscript", "dynamo"),
) -> Entry:
    return Entry(f"torchvision {name}", "torchvision", exporters, build, inputs, sizes)


def _classifier(name: str, options: Mapping[str, Any]) -> Entry:
    def build() -> Any:
        import torchvision

        return getattr(torchvision.models, name)(weights=None, num_classes=10, **options)

    return _entry(name, build)


def _segmenter(name: str) -> Entry:
    def build() -> Any:
        import torchvision

        create = getattr(torchvision.models.segmentation, name)
        return create(weights=None, weights_backbone=None, num_classes=5)

    return _entry(name, build)


def _detector(name: str, options: Mapping[str, Any]) -> Entry:
    def build() -> Any:
        import torchvision

        create = getattr(torchvision.models.detection, name)
        sizes = {} if name.startswith("ssd") else {"min_size": 64, "max_size": 96}
        model = create(weights=None, weights_backbone=None, num_classes=4, **sizes, **options)
        return _of_one_image(model)

    inputs = {"image": floats(3, "height", "width", low=0)}
    sizes = ({"height": 64, "width": 96}, {"height": 80, "width": 64})
    return _entry(name, build, inputs, sizes, ("torchscript",))


def _of_one_image(model: Any) -> Any:
    import torch

    class OneImage(torch.nn.Module):
        """torchvision's detectors take a list of images."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, image: Any) -> Any:
            return self.model([image])

    return OneImage()


def _vit() -> Any:
    from torchvision.models import VisionTransformer

    return VisionTransformer(64, 16, 2, 2, 32, 64, num_classes=10)


def _swin(version: str) -> Callable[[], Any]:
    def build() -> Any:
        from torchvision.models import swin_transformer as swin

        blocks = {
            "v1": {},
            "v2": {
                "block": swin.SwinTransformerBlockV2,
                "downsample_layer": swin.PatchMergingV2,
            },
        }[version]
        return swin.SwinTransformer([4, 4], 16, [2, 2], [1, 2], [4, 4], num_classes=10, **blocks)

    return build


def _maxvit() -> Any:
    from torchvision.models import MaxVit

    return MaxVit((64, 64), 16, 2, [16, 32], [1, 1], 16, 0.0, num_classes=10)


def _video(name: str) -> Callable[[], Any]:
    def build() -> Any:
        import torchvision

        return getattr(torchvision.models.video, name)(weights=None, num_classes=10)

    return build


def _raft() -> Any:
    from torchvision.models.optical_flow import raft_small

    model = raft_small(weights=None)
    forward = model.forward
    model.forward = lambda first, second: forward(first, second, num_flow_updates=2)
    return model


_FRAMES = ({"batch": 2}, {"batch": 1})

ENTRIES = (
    *(_classifier(name, options) for name, options in CLASSIFIERS.items()),
    _entry("vit", _vit, {"images": floats("batch", 3, 64, 64)}, _FRAMES),
    _entry("swin", _swin("v1")),
    _entry("swin_v2", _swin("v2")),
    _entry("maxvit", _maxvit, {"images": floats("batch", 3, 64, 64)}, _FRAMES),
    *(_segmenter(name) for name in SEGMENTERS),
    *(_detector(name, options) for name, options in DETECTORS.items()),
    _entry("r3d_18", _video("r3d_18"), {"frames": floats("batch", 3, 8, 32, 32)}, _FRAMES),
    _entry("s3d", _video("s3d"), {"frames": floats("batch", 3, 16, 224, 224)}, _FRAMES),
    _entry(
        "raft_small",
        _raft,
        {"first": floats("batch", 3, 128, 128), "second": floats("batch", 3, 128, 128)},
        _FRAMES,
    ),
)
