"""Operators on sequences and optionals: lists, and values that may be None."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.host.operators.operator import HostOperator, without_attributes


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


def _insert(given: Sequence[Any]) -> tuple[list[Any]]:
    items = list(given[0])
    count = len(items)
    at_end = len(given) > 2 and given[2] is not None and _number(given[2]) == count
    items.insert(count if at_end else _position(given, 2, count, count), given[1])
    return (items,)


def _erase(given: Sequence[Any]) -> tuple[list[Any]]:
    items = list(given[0])
    if not items:
        raise FormError("the sequence is empty")
    del items[_position(given, 1, len(items), -1)]
    return (items,)


def _get_element(given: Sequence[Any]) -> tuple[Any]:
    if given[0] is None:
        raise FormError("the optional has no element")
    return (given[0],)


CONTAINER_OPERATORS: dict[str, HostOperator] = {
    name: without_attributes(compute)
    for name, compute in {
        "Optional": lambda given: (given[0] if given else None,),
        "OptionalGetElement": _get_element,
        "OptionalHasElement": lambda given: (np.array(bool(given) and given[0] is not None),),
        "SequenceAt": lambda given: (given[0][_position(given, 1, len(given[0]), 0)],),
        "SequenceConstruct": lambda given: ([one for one in given if one is not None],),
        "SequenceEmpty": lambda given: ([],),
        "SequenceErase": _erase,
        "SequenceInsert": _insert,
        "SequenceLength": lambda given: (np.array(len(given[0]), np.int64),),
    }.items()
}
