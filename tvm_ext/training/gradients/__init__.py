"""Gradients of operators that TVM has none for, or slow ones: one file an operator family."""

import importlib
from functools import cache

_FAMILIES = ("elementwise", "normalization", "products", "shapes", "windows")


@cache
def register_gradients() -> None:
    """Gives TVM's operators our gradients, once."""
    for family in _FAMILIES:
        importlib.import_module(f"tvm_ext.training.gradients.{family}")
