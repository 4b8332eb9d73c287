"""Nodes whose inputs are numbers, computed by ONNX's own reference implementation."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tvm_ext.onnx_frontend.value_sizes import range_steps

# Elements of a result that is computed while a model is imported: tables of positions.
MOST_ELEMENTS = 1 << 16


class NotComputed(Exception):
    """The reference implementation cannot, or the result would be too large."""


def computed_by_reference(
    node: onnx.NodeProto, inputs: Sequence[np.ndarray | None], opset: int
) -> list[np.ndarray]:
    """The node's outputs.

    Raises
    ------
    NotComputed
        See there.
    """
    if _expected_elements(node, inputs) > MOST_ELEMENTS:
        raise NotComputed(node.op_type)
    # The same value may be several inputs: each gets a name of its own.
    names = ["" if value is None else f"i{place}" for place, value in enumerate(inputs)]
    single = onnx.NodeProto()
    single.CopyFrom(node)
    del single.input[:]
    single.input.extend(names)
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    infos = [onnx.ValueInfoProto(name=name) for name in names if name]
    graph = onnx.helper.make_graph([single], "node", infos, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    feeds = {name: value for name, value in zip(names, inputs, strict=True) if name}
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:
        # Whatever NumPy raises at indices out of range and the like: the run says what is wrong.
        raise NotComputed(node.op_type) from error
    # TVM writes constants as they lie in memory: transposed ones would be damaged files.
    arrays = [np.array(value, order="C") for value in found]
    if any(array.dtype == object or array.size > MOST_ELEMENTS for array in arrays):
        raise NotComputed(node.op_type)
    return arrays


def _expected_elements(node: onnx.NodeProto, inputs: Sequence[np.ndarray | None]) -> int:
    """How many elements operators make whose result is larger than what they read."""
    numbers: list[Any] = [None if value is None else value.flatten().tolist() for value in inputs]
    try:
        if node.op_type == "ConstantOfShape":
            return math.prod(numbers[0])
        if node.op_type == "Expand":
            return math.prod(numbers[1]) * len(numbers[0])
        if node.op_type == "Tile":
            return math.prod(numbers[1]) * len(numbers[0])
        if node.op_type == "Range":
            return range_steps(*(value.item() for value in inputs if value is not None))
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise NotComputed(node.op_type) from error
    return MOST_ELEMENTS + 1 if node.op_type in _SIZED_BY_VALUES else 0


# Others whose results can be much larger than all that they read.
_SIZED_BY_VALUES = frozenset(
    {
        *("BlackmanWindow", "CenterCropPad", "Col2Im", "DFT", "Einsum", "HammingWindow"),
        *("HannWindow", "MaxUnpool", "MelWeightMatrix", "OneHot", "Resize", "STFT", "Upsample"),
    }
)
