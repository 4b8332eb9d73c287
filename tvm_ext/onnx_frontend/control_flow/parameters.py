"""Parameters of the functions that bodies of If and Loop become.

A body reads values from outside. In Relax a function of a module sees none of them, so each becomes
a parameter; constants are written into the body. Symbolic sizes of the outside come as one
parameter more, a shape, because a size such as ``2 * n`` in another parameter defines no ``n``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from tvm import relax, tirx

from tvm_ext.onnx_frontend.control_flow.symbolic_types import Symbols
from tvm_ext.onnx_frontend.control_flow.values import bound, is_value
from tvm_ext.onnx_frontend.converters.random import ITERATIONS
from tvm_ext.onnx_frontend.iterations import draws_inside
from tvm_ext.onnx_frontend.scopes import free_names
from tvm_ext.onnx_frontend.sizes import SizeValues
from tvm_ext.onnx_frontend.sizes.scalar_rules import variables_of
from tvm_ext.tir_schedules.nest import substitute


@dataclass(frozen=True)
class Signature:
    """What functions of one If or Loop take.

    Attributes
    ----------
    fixed : tuple[tirx.Var, ...]
        Symbolic sizes of the caller, passed on as a shape.
    types : tuple[relax.Type, ...]
        Of the other parameters; may use ``fixed`` and variables of their own.
    """

    fixed: tuple[tirx.Var, ...]
    types: tuple[relax.Type, ...]

    def parameters(self) -> tuple[list[relax.Var], list[relax.Var], dict[tirx.Var, tirx.Var]]:
        """New parameters, those of them that stand for ``types``, and the new symbols by old."""
        symbols = {var: _like(var) for var in self.fixed}
        for ty in self.types:
            for var in relax.analysis.tir_vars_in_type(ty):
                if not _has(symbols, var):
                    symbols[var] = _like(var)
        values = [
            relax.Var(f"p{index}", substitute(ty, symbols)) for index, ty in enumerate(self.types)
        ]
        if not self.fixed:
            return values, values, symbols
        sizes = relax.Var("sizes", relax.ShapeType([symbols[var] for var in self.fixed]))
        return [sizes, *values], values, symbols

    def arguments(self, values: Sequence[relax.Expr], symbols: Symbols) -> list[relax.Expr]:
        """The arguments of a call where ``fixed`` are known as ``symbols``."""
        if not self.fixed:
            return list(values)
        return [relax.ShapeExpr([symbols.get(var, var) for var in self.fixed]), *values]

    def outside(self, ty: relax.Type, symbols: Symbols) -> relax.Type:
        """A type found inside of a function, in the symbols of the signature.

        A size that is known inside only becomes a variable that is not in the signature.
        """
        inverse = {inner: outer for outer, inner in symbols.items()}
        return substitute(ty, inverse)


@dataclass(frozen=True)
class Captured:
    """What a body reads from outside: by name, the values out there."""

    values: dict[str, Any]

    def names_of(self, value: Any) -> list[str]:
        """Under which names the body reads a value."""
        return [name for name, other in self.values.items() if other is value]

    def symbols(self) -> list[tirx.Var]:
        """Symbolic sizes in them."""
        found: dict[tirx.Var, None] = {}
        for value in self.values.values():
            for leaf in _leaves(value):
                found.update(dict.fromkeys(_symbols_of(leaf)))
        return list(found)

    def arguments(self) -> list[relax.Var]:
        """Those that become parameters, in order, each once."""
        found = [leaf for value in self.values.values() for leaf in _leaves(value)]
        return list(dict.fromkeys(leaf for leaf in found if is_value(leaf)))

    def inside(self, parameters: Sequence[relax.Var], symbols: Symbols) -> dict[str, Any]:
        """The values by name as a function sees them whose parameters for them are given."""
        known = dict(zip(self.arguments(), parameters, strict=True))

        def seen(value: Any) -> Any:
            if isinstance(value, relax.Tuple):
                return relax.Tuple([seen(field) for field in value.fields])
            if is_value(value):
                return known[value]
            if isinstance(value, SizeValues):
                tensor = seen(value.tensor) if value.unknown else None
                return value.with_symbols(lambda e: substitute(e, symbols), tensor)
            return value

        return {name: seen(value) for name, value in self.values.items()}


def capture(
    bb: relax.BlockBuilder, graphs: Iterable[onnx.GraphProto], nodes: dict[str, Any]
) -> Captured:
    """What the graphs read of ``nodes``, the values by name around them, and the iterations."""
    found: dict[str, Any] = {}
    for graph in graphs:
        for name in [*free_names(graph), *([ITERATIONS] if draws_inside(graph) else [])]:
            if name in nodes:
                nodes[name] = bound(bb, nodes[name])
                found[name] = nodes[name]
    return Captured(found)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, relax.Tuple):
        return [leaf for field in value.fields for leaf in _leaves(field)]
    if isinstance(value, SizeValues) and value.unknown:
        return [value, value.tensor]
    return [value]


def _symbols_of(value: Any) -> list[tirx.Var]:
    if isinstance(value, SizeValues):
        return variables_of(*value.expressions())
    if is_value(value):
        return list(relax.analysis.tir_vars_in_type(value.ty))
    return []


def _has(symbols: Symbols, var: tirx.Var) -> bool:
    return any(var.same_as(other) for other in symbols)


def _like(var: tirx.Var) -> tirx.Var:
    return tirx.Var(str(var.name), "int64")
