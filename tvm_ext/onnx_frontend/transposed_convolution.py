"""ConvTranspose with ``output_shape``: the padding that gives it, as ``pads``.

TVM's converter ignores the attribute.
"""

from collections.abc import Sequence

import onnx_ir as ir

from tvm_ext.errors import ModelError


def explicit_output_shape(node: ir.Node) -> None:
    """Replaces ``output_shape`` by the ``pads`` of ONNX's formula.

    Per axis, the padding takes away ``stride * (size - 1) + output_padding + dilation *
    (kernel - 1) + 1 - output_shape``; the odd element in front, or behind for SAME_UPPER. Where
    that is below zero, output padding makes up for it.

    Raises
    ------
    ModelError
        The input's or the weight's sizes are symbolic.
    """
    attribute = node.attributes.get("output_shape")
    if attribute is None:
        return
    shape = list(attribute.as_ints())
    data, weight = (_spatial_sizes(value) for value in node.inputs[:2])
    if data is None or weight is None:
        raise ModelError(
            f"ConvTranspose node '{node.name}' has an output_shape and symbolic sizes; expected "
            "known ones behind the batch and the channels: give input shapes"
        )
    count = len(data)
    shape = shape[-count:]
    strides, dilations = (
        _integers(node, "strides", count, 1),
        _integers(node, "dilations", count, 1),
    )
    kernel = _integers(node, "kernel_shape", count, 0)
    added = _integers(node, "output_padding", count, 0)
    upper = "auto_pad" in node.attributes and (
        node.attributes["auto_pad"].as_string() == "SAME_UPPER"
    )
    front, behind = [], []
    for k in range(count):
        width = kernel[k] or weight[k]
        total = strides[k] * (data[k] - 1) + added[k] + dilations[k] * (width - 1) + 1
        total -= shape[k]
        if total < 0:
            added[k] -= total
            total = 0
        front.append(total // 2 if upper else total - total // 2)
        behind.append(total - front[-1])
    for name in ("output_shape", "auto_pad"):
        node.attributes.pop(name, None)
    node.attributes["pads"] = ir.AttrInt64s("pads", front + behind)
    node.attributes["output_padding"] = ir.AttrInt64s("output_padding", added)


def _spatial_sizes(value: ir.Value | None) -> list[int] | None:
    if value is None or value.shape is None:
        return None
    sizes: Sequence[object] = list(value.shape)[2:]
    known = [size for size in sizes if isinstance(size, int)]
    return known if len(known) == len(sizes) else None


def _integers(node: ir.Node, name: str, count: int, default: int) -> list[int]:
    attribute = node.attributes.get(name)
    return list(attribute.as_ints()) if attribute is not None else [default] * count
