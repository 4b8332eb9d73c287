"""Kernels in MLIR: conversion of TensorIR to its dialects, lowering, and a second code generator.

MLIR comes with ``torch-mlir``, an optional dependency: what needs it is imported when it is asked
for.
"""

import importlib.util

from tvm_ext.configs.errors import TvmExtError

__all__ = ["MlirError", "has_mlir", "require_mlir"]


class MlirError(TvmExtError):
    """A kernel cannot be brought to MLIR or compiled by it, or what it takes is not installed."""


def has_mlir() -> bool:
    """Whether ``torch-mlir`` is installed."""
    return importlib.util.find_spec("torch_mlir") is not None


def require_mlir() -> None:
    """Raises MlirError if ``torch-mlir`` is not installed."""
    if not has_mlir():
        raise MlirError(
            "torch-mlir is not installed; expected it for what is done in MLIR: "
            "pip install 'tvm-ext[mlir]'"
        )
