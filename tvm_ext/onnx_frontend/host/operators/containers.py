"""Operators on sequences and optionals: lists, and values that may be None."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.host.operators.operator import Compute, HostOperator


def _position(given: Sequence[Any], index: int, length: int, otherwise: int) -> int:
    """A position that an operator is given, from 0 to below ``length``."""
    if len(given) <= index or given[index] is None:
        return otherwise
    position = _number(given[index])
    if not -length <= position < length:
        raise FormError(f"position {position} is outside of a sequence of {length}")
    return position % length


def _number(value: Any) -> int:
    """A scalar, or an array of one element, as which exporters write positions."""
    return int(np.asarray(value).item())


def _construct(attributes: dict[str, Any], opset: int) -> Compute:
    return lambda given: ([one for one in given if one is not None],)


def _empty(attributes: dict[str, Any], opset: int) -> Compute:
    return lambda given: ([],)


def _insert(attributes: dict[str, Any], opset: int) -> Compute:
    def compute(given: Sequence[Any]) -> tuple[list[Any]]:
        items = list(given[0])
        count = len(items)
        at_end = len(given) > 2 and given[2] is not None and _number(given[2]) == count
        items.insert(count if at_end else _position(given, 2, count, count), given[1])
        return (items,)

    return compute


def _erase(attributes: dict[str, Any], opset: int) -> Compute:
    def compute(given: Sequence[Any]) -> tuple[list[Any]]:
        items = list(given[0])
        if not items:
            raise FormError("the sequence is empty")
        del items[_position(given, 1, len(items), -1)]
        return (items,)

    return compute


def _at(attributes: dict[str, Any], opset: int) -> Compute:
    return lambda given: (given[0][_position(given, 1, len(given[0]), 0)],)


def _length(attributes: dict[str, Any], opset: int) -> Compute:
    return lambda given: (np.array(len(given[0]), np.int64),)


def _optional(attributes: dict[str, Any], opset: int) -> Compute:
    return lambda given: (given[0] if given else None,)


def _get_element(attributes: dict[str, Any], opset: int) -> Compute:
    def compute(given: Sequence[Any]) -> tuple[Any]:
        if given[0] is None:
            raise FormError("the optional has no element")
        return (given[0],)

    return compute


def _has_element(attributes: dict[str, Any], opset: int) -> Compute:
    return lambda given: (np.array(bool(given) and given[0] is not None),)


CONTAINER_OPERATORS: dict[str, HostOperator] = {
    "Optional": _optional,
    "OptionalGetElement": _get_element,
    "OptionalHasElement": _has_element,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
}
