"""Conditions of kernels, taken apart."""

from typing import Any

from tvm import tirx


def conjuncts(condition: Any) -> list[Any]:
    """The conditions that all have to hold for ``condition`` to hold."""
    if isinstance(condition, tirx.And):
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    return [condition]
