"""What a host operator is: a function made once from a node, called in every run."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import onnx

Compute: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""From the values of a node's inputs (None for one that is left out) to those of its outputs."""

HostOperator: TypeAlias = Callable[[dict[str, Any], int], Compute]
"""Makes the function of a node from its attributes and the operator set of its domain."""


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Attributes by name, text as ``str``."""
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {name: _decoded(value) for name, value in found.items()}


def _decoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, list | tuple) and any(isinstance(one, bytes) for one in value):
        return [_decoded(one) for one in value]
    return value
