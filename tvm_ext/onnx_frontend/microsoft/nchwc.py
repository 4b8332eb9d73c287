"""Operators of com.microsoft.nchwc, which ONNX Runtime's optimiser writes, in default operators.

Their tensors are images of shape (batch, channels, height, width) whose channels lie in memory in
blocks, as many as a vector of the CPU that the model was optimised on has lanes; channels that fill
up the last block are zero. Here tensors are plain again, and only weights are taken out of blocks:
``OIHW16o`` where the image comes as it is, and in depthwise convolutions, else ``OIHW16i16o``.
(ONNX Runtime: onnxruntime/core/optimizer/nchwc_transformer.cc, core/mlas/lib/reorder.cpp.)
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.system import host_cpu_features
from tvm_ext.onnx_frontend.microsoft.builder import Builder, stored
from tvm_ext.onnx_frontend.microsoft.fused import activated

NCHWC = "com.microsoft.nchwc"

_Results = list[ir.Value | None]
_WIDE, _SHORT = 16, 8


def convolution(b: Builder) -> _Results:
    """Conv with weights in blocks, a sum with another tensor, and an activation."""
    given = stored(b.input(1))
    if given is None or given[0] is None:
        raise NotApplicable("weights that the run computes")
    group = int(b.attribute("group", 1))
    weights = _plain_weights(given[0], group, block_size(b.node))
    skipped = {"activation", "activation_params"}
    kept = {k: a.value for k, a in b.node.attributes.items() if k not in skipped}
    result = b.op("Conv", b.input(0), b.constant(weights), b.optional(2), **kept)
    if b.optional(3) is not None:
        result = b.op("Add", result, b.input(3))
    return [activated(b, result, list(b.attribute("activation_params", ())))]


def _plain_weights(weights: np.ndarray, group: int, block: int) -> np.ndarray:
    outputs, inputs, height, width = weights.shape
    if outputs % block:
        raise NotApplicable("channels that are no whole blocks")
    if inputs == 1 if group > 1 else inputs < block:
        parts = weights.reshape(outputs // block, inputs, height, width, block)
        return parts.transpose(0, 4, 1, 2, 3).reshape(weights.shape)
    if inputs % block:
        raise NotApplicable("channels that are no whole blocks")
    parts = weights.reshape(outputs // block, inputs // block, height, width, block, block)
    return parts.transpose(0, 5, 1, 4, 2, 3).reshape(weights.shape)


def block_size(node: ir.Node) -> int:
    """Channels in a block, by all convolutions beside the node; where these allow two, the host's.

    ONNX Runtime, which does not store it, always takes the host's.
    """
    nodes = list(node.graph or [])
    shapes = [one.inputs[1].shape for one in nodes if _is(one, "Conv") and one.inputs[1]]
    if any(shape is not None and int(shape[0]) % _WIDE for shape in shapes):
        return _SHORT
    if any(_needs_wide_blocks(one) for one in nodes):
        return _WIDE
    features = host_cpu_features()
    return _SHORT if "avx" in features and "avx512f" not in features else _WIDE


def _needs_wide_blocks(node: ir.Node) -> bool:
    """Whether fewer channels in a block would have made fewer channels in all."""
    source = node.inputs[0].producer() if node.inputs and node.inputs[0] else None
    if _is(node, "ReorderOutput") and source is not None and _is(source, "Conv"):
        weights = source.inputs[1]
        if weights is None or weights.shape is None:
            return False
        return int(weights.shape[0]) - node.attributes["channels"].as_int() >= _SHORT
    if not _is(node, "Conv") or "group" not in node.attributes or node.inputs[1] is None:
        return False
    shape = node.inputs[1].shape
    plain = source is None or source.domain != NCHWC
    one_group = node.attributes["group"].as_int() == 1
    return plain and one_group and shape is not None and _SHORT <= int(shape[1]) < _WIDE


def _is(node: ir.Node, operator: str) -> bool:
    return node.domain == NCHWC and node.op_type == operator


def pool(b: Builder) -> _Results:
    """A pool, of windows or of whole images."""
    kept = {k: a.value for k, a in b.node.attributes.items()}
    return [b.op(b.node.op_type, b.input(0), **kept)]


def upsample(b: Builder) -> _Results:
    """Resize by whole numbers: the nearest element in front, or linear interpolation."""
    mode = b.attribute("mode", "nearest")
    scales = b.constant(np.array(b.attribute("scales"), np.float32))
    if b.opset < 11:
        raise NotApplicable("an opset below 11")
    no_box = b.constant(np.array([], np.float32))
    where = b.attribute("coordinate_transformation_mode", "asymmetric")
    nearest = {"nearest_mode": "floor"} if mode == "nearest" else {}
    return [
        b.op(
            *("Resize", b.input(0), no_box, scales),
            mode=mode,
            coordinate_transformation_mode=where,
            **nearest,
        )
    ]


def reorder_input(b: Builder) -> _Results:
    """An image with channels first, and with zeros behind them up to whole blocks."""
    x = b.input(0)
    last = bool(b.attribute("channels_last", 0))
    channels = x.shape[3 if last else 1] if x.shape is not None else None
    if not isinstance(channels, int):
        raise NotApplicable("an unknown number of channels")
    if last:
        x = b.op("Transpose", x, perm=[0, 3, 1, 2])
    missing = -channels % block_size(b.node)
    if not missing:
        return [b.op("Identity", x)]
    if b.opset < 11:
        return [b.op("Pad", x, pads=[0, 0, 0, 0, 0, missing, 0, 0])]
    return [b.op("Pad", x, b.constant(np.array([0, 0, 0, 0, 0, missing, 0, 0])))]


def reorder_output(b: Builder) -> _Results:
    """The first channels, first or last."""
    x = b.input(0)
    if x.shape is None:
        raise NotApplicable("an unknown number of channels")
    channels = int(b.attribute("channels"))
    if x.shape[1] != channels:
        bounds = [b.constant(np.array([number])) for number in (0, channels, 1)]
        x = b.op("Slice", x, *bounds)
    if b.attribute("channels_last", 0):
        return [b.op("Transpose", x, perm=[0, 2, 3, 1])]
    return [b.op("Identity", x)]


NCHWC_REWRITES: dict[str, Callable[[Builder], _Results]] = {
    "AveragePool": pool,
    "Conv": convolution,
    "GlobalAveragePool": pool,
    "GlobalMaxPool": pool,
    "MaxPool": pool,
    "ReorderInput": reorder_input,
    "ReorderOutput": reorder_output,
    "Upsample": upsample,
}
