"""Types of tensors whose sizes are symbols, on their way from one function to another."""

from collections.abc import Iterable, Mapping
from typing import Any

from tvm import relax, tirx

from tvm_ext.tir_schedules.nest import substitute

Symbols = Mapping[tirx.Var, Any]


def with_symbols(ty: relax.TensorType) -> relax.TensorType:
    """The type with a new symbol for each axis when its shape is unknown."""
    if isinstance(ty.shape, relax.ShapeExpr):
        return ty
    sizes = [tirx.Var(f"d{axis}", "int64") for axis in range(ty.ndim)]
    return relax.TensorType(sizes, str(ty.dtype))


def definite(ty: relax.TensorType, known: Iterable[tirx.Var]) -> relax.TensorType:
    """The type without its shape when that uses symbols that are not ``known``."""
    unknown = unknown_symbols(ty, known)
    return relax.TensorType(dtype=str(ty.dtype), ndim=ty.ndim) if unknown else ty


def unknown_symbols(ty: relax.Type, known: Iterable[tirx.Var]) -> list[tirx.Var]:
    """Symbols of a type that are not ``known``."""
    listed = list(known)
    return [
        var
        for var in relax.analysis.tir_vars_in_type(ty)
        if not any(var.same_as(other) for other in listed)
    ]


def is_one_element(ty: relax.TensorType) -> bool:
    """Whether all sizes are known to be 1."""
    return all(isinstance(size, tirx.IntImm) and int(size) == 1 for size in ty.shape.values)


def renewed(ty: relax.TensorType, symbols: Symbols) -> relax.TensorType:
    """The type in other ``symbols``, with a new one for every axis that they do not describe."""
    sizes = []
    for axis, size in enumerate(ty.shape.values):
        found = unknown_symbols(relax.ShapeType([size]), symbols)
        sizes.append(tirx.Var(f"d{axis}", "int64") if found else substitute(size, symbols))
    return relax.TensorType(sizes, str(ty.dtype))
