"""Bodies of If and Loop as private Relax functions: parameters, symbolic types, branches."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import onnx
import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.random import ITERATIONS
from tvm_ext.onnx_frontend.ir_edits import draws_inside
from tvm_ext.onnx_frontend.onnx_graph import free_names
from tvm_ext.onnx_frontend.sizes import GeneratedTensor, SizeValues
from tvm_ext.onnx_frontend.sizes.scalar_rules import in_own_scope, variables_of
from tvm_ext.tir_schedules.analysis.loop_nest import substitute


def function(
    bb: relax.BlockBuilder,
    parameters: list[relax.Var],
    build: Callable[[], relax.Expr],
    straight: bool = True,
) -> relax.Function:
    """A private function that returns what ``build`` emits; ``straight`` when it holds no If."""
    bb.begin_scope(parameters)
    if straight:
        bb._begin_dataflow_block()
    else:
        bb._begin_binding_block()
    try:
        with in_own_scope():
            result = bb.emit_output(build()) if straight else build()
    except BaseException:
        # Another branch may go on where this one failed.
        bb._end_block()
        bb.end_scope()
        raise
    body = _sequence(bb, parameters, result)
    return relax.Function(parameters, body, body.ty)


def _sequence(
    bb: relax.BlockBuilder, parameters: list[relax.Var], result: relax.Expr
) -> relax.SeqExpr:
    """Ends the block and the scope, and types the result by the parameters' symbols alone.

    In the scope of the block a size that is only known inside would stay in the type.
    """
    block = bb._end_block()
    bb.end_scope()
    bb.begin_scope(parameters)
    body = bb.normalize(relax.SeqExpr([block], result))
    bb.end_scope()
    return body


def branches(
    bb: relax.BlockBuilder,
    parameters: list[relax.Var],
    condition: relax.Expr,
    chosen: Callable[[], relax.Expr],
    otherwise: Callable[[], relax.Expr],
) -> relax.Var:
    """Emits an If in a function of these parameters; the callables emit its branches."""
    sides: list[relax.SeqExpr] = []
    for build in (chosen, otherwise):
        bb.begin_scope(parameters)
        bb._begin_binding_block()
        with in_own_scope():
            result = build()
        if not isinstance(result, relax.Var):
            result = bb.emit(result)
        if sides:
            result = _without_other_sizes(bb, result, sides[0].ty)
        sides.append(_sequence(bb, parameters, result))
    return bb.emit(relax.If(condition, *sides))


def _without_other_sizes(bb: relax.BlockBuilder, result: relax.Var, like: relax.Type) -> relax.Var:
    """The tuple of a branch without sizes that are written otherwise than in the type ``like``.

    TVM may prove them equal and give the If one of the two. Its CanonicalizeBindings then casts
    the other branch to it: where it is ``n``, and the other one an expression of n, it puts that in
    place of n again and again, until the process dies.
    """
    if not isinstance(result.ty, relax.TupleType) or not isinstance(like, relax.TupleType):
        return result
    types = [
        relax.TensorType(dtype=str(own.dtype), ndim=own.ndim) if _differ(own, other) else None
        for own, other in zip(result.ty.fields[:], like.fields[:], strict=True)
    ]
    if not any(ty is not None for ty in types):
        return result
    return bb.emit(relax.Tuple(fields(bb, result, types)))


def _differ(one: relax.Type, other: relax.Type) -> bool:
    if not all(isinstance(getattr(ty, "shape", None), relax.ShapeExpr) for ty in (one, other)):
        return False
    return one.ndim == other.ndim and not tvm_ffi.structural_equal(one.shape, other.shape)


def function_name(*parts: str) -> str:
    """A name for a function from a node's name."""
    return re.sub(r"[^0-9A-Za-z_]", "_", "_".join(parts))


def without_unused_functions(mod: tvm.IRModule) -> tvm.IRModule:
    """The module without functions that ``main`` does not reach: attempts to type a body."""
    reached: dict[str, None] = {}
    waiting = ["main"]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached[name] = None
        func = mod[name]
        if isinstance(func, relax.Function):
            waiting += [str(gv.name_hint) for gv in relax.analysis.all_global_vars(func)]
    kept = {gv: func for gv, func in mod.functions.items() if str(gv.name_hint) in reached}
    return tvm.IRModule(kept, attrs=mod.attrs)


# Types of tensors whose sizes are symbols, on their way from one function to another.


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


# Values of the graph as functions take and give them: tensors, shapes, sizes, conditions.


def as_tensor(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    """Sizes as a tensor of numbers, and every tensor with a size for each axis.

    Raises
    ------
    FormError
        The value is a sequence, an optional or of unknown rank.
    """
    if isinstance(value, SizeValues | GeneratedTensor):
        return value.as_tensor(bb)
    if not isinstance(value, relax.Expr):
        raise FormError("it passes an empty optional, where a tensor is expected")
    if isinstance(value, relax.Tuple) or isinstance(value.ty, relax.TupleType):
        raise FormError("it passes a sequence whose length is not known, where a tensor can be")
    if isinstance(value.ty, relax.ShapeType):
        value = bb.emit(relax.op.shape_to_tensor(value))
    if value.ty.ndim < 0:
        raise FormError("it passes a tensor whose rank is not known")
    value = bound(bb, value)
    if isinstance(value.ty.shape, relax.ShapeExpr):
        return value
    return bb.match_cast(value, with_symbols(value.ty))


def fields(bb: relax.BlockBuilder, value: relax.Expr, types: Sequence[Any]) -> list[relax.Expr]:
    """The fields of an emitted tuple, each cast to its type unless that is None."""
    found = []
    for index, ty in enumerate(types):
        field = bb.emit(relax.TupleGetItem(value, index))
        if ty is not None and not tvm_ffi.structural_equal(field.ty, ty):
            field = bb.match_cast(field, ty)
        found.append(field)
    return found


def truth(value: Any) -> bool | None:
    """The value of a condition that is constant, else None."""
    if isinstance(value, tvm.ir.GenericConst):
        return bool(np.all(value.value.numpy()))
    return None


def bound(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    """Calls and the like as variables; a body can only name those."""
    if isinstance(value, GeneratedTensor):
        return value.as_tensor(bb)
    if isinstance(value, relax.Tuple):
        return relax.Tuple([bound(bb, field) for field in value.fields])
    if isinstance(value, relax.Call | relax.TupleGetItem):
        return bb.emit(value)
    return value


def scalar(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    """The only element of a tensor, without axes."""
    if value.ty.ndim == 0:
        return value
    if isinstance(value, tvm.ir.GenericConst):
        return relax.const(value.value.numpy().reshape(()), str(value.ty.dtype))
    return bb.emit(relax.op.reshape(value, ()))


def integer(value: relax.Expr | None) -> int | None:
    """The value of a constant of one element; None for a missing one or what the run computes."""
    return int(value.value.numpy()) if isinstance(value, tvm.ir.GenericConst) else None


# Parameters of the functions that bodies of If and Loop become.
#
# A body reads values from outside. In Relax a function of a module sees none of them, so each
# becomes a parameter; constants are written into the body. Symbolic sizes of the outside come as
# one parameter more, a shape, because a size such as ``2 * n`` in another parameter defines no
# ``n``.


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

    def parameters(
        self, same: Symbols = MappingProxyType({})
    ) -> tuple[list[relax.Var], list[relax.Var], dict[tirx.Var, tirx.Var]]:
        """New parameters, those of them that stand for ``types``, and the new symbols by old.

        A size that is a key of ``same`` gets the symbol of the other one, which a call checks.
        """
        symbols = {var: _like(var) for var in self.fixed}
        for ty in self.types:
            for var in relax.analysis.tir_vars_in_type(ty):
                if not any(var.same_as(other) for other in symbols):
                    symbols[var] = _like(var)
        symbols.update({var: symbols[other] for var, other in same.items()})
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
        # Of two sizes that are one inside, the first is that of more inputs.
        inverse = {inner: outer for outer, inner in reversed(list(symbols.items()))}
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
        return list(dict.fromkeys(leaf for leaf in found if isinstance(leaf, relax.Var)))

    def inside(self, parameters: Sequence[relax.Var], symbols: Symbols) -> dict[str, Any]:
        """The values by name as a function sees them whose parameters for them are given."""
        known = dict(zip(self.arguments(), parameters, strict=True))

        def seen(value: Any) -> Any:
            if isinstance(value, relax.Tuple):
                return relax.Tuple([seen(field) for field in value.fields])
            if isinstance(value, relax.Var):
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
    if isinstance(value, relax.Var):
        return list(relax.analysis.tir_vars_in_type(value.ty))
    return []


def _like(var: tirx.Var) -> tirx.Var:
    return tirx.Var(str(var.name), "int64")


class BodyConverter(Protocol):
    """The importer, as far as control flow needs it."""

    bb: relax.BlockBuilder
    _nodes: dict[str, Any]

    def sizes_of_branch(self, branch: str) -> dict[tirx.Var, tirx.Var]:
        """Sizes that are equal to others where this branch of an If, then or else, is chosen."""

    def convert_body(self, graph: onnx.GraphProto, nodes: dict[str, Any]) -> list[Any]:
        """The outputs of a body whose surroundings are ``nodes``, emitted where ``bb`` is.

        All values of the body are in ``nodes`` afterwards.
        """
