"""ImageDecoder: a compressed image as pixels, decoded by Pillow."""

import importlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.host.operators.operator import Compute, HostOperator

_MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}


def image_decoder(attributes: dict[str, Any], opset: int) -> Compute:
    """Rows, columns and channels, uint8, of the bytes of a file.

    Raises
    ------
    ModelError
        Pillow is not installed, or the pixels are asked for in an unknown format.
    """
    try:
        images = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise ModelError(
            "ImageDecoder needs the package Pillow, which is not installed; expected it: "
            "pip install pillow"
        ) from error
    wanted = attributes.get("pixel_format", "RGB")
    if wanted not in _MODES:
        raise ModelError(
            f"ImageDecoder has pixel_format '{wanted}'; expected {', '.join(_MODES)}: "
            "export it again"
        )

    def compute(given: Sequence[Any]) -> tuple[np.ndarray]:
        pixels = np.array(images.open(io.BytesIO(given[0].tobytes())).convert(_MODES[wanted]))
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
        return (np.ascontiguousarray(pixels[..., ::-1]) if wanted == "BGR" else pixels,)

    return compute


IMAGE_OPERATORS: dict[str, HostOperator] = {"ImageDecoder": image_decoder}
