"""Which sizes that a run decides are equal, and how large they may be.

The types of Relax say most: two values of the shape ``(n, 3)`` have equally many rows. An importer
that cannot follow a size makes a new symbol for it with ``match_cast``, and a function of a module
has symbols of its own. Here symbols are joined where a run would end with an error if they differed
(a cast, the operands of a product), where they are computed to be equal (what a reshape leaves
over), and where all calls of a function agree. MLIR's ``ShapeDialect`` calls it shape constraints.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from tvm_ext.relay_passes.dataflow.sizes import extent_bounds
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.spans import all_bindings_of, relax_functions


class SymbolicShapes:
    """Classes of equal sizes."""

    def __init__(self, sizes: Mapping[str, tuple[int, int]]) -> None:
        self._sizes = sizes
        self._analyzer = Analyzer()
        # By the hash of a symbol: what it is equal to, in symbols that equal nothing older.
        self._known: dict[int, tuple[tirx.Var, Any]] = {}

    def canonical(self, size: Any) -> Any:
        """A size in as few symbols as possible; that of an equal size is the same."""
        if isinstance(size, int | tirx.IntImm):
            return tirx.const(int(size), "int64")
        if not self._known:
            return size
        replaced = structural_map(size, (tirx.Var, self._resolved))
        return replaced if replaced.same_as(size) else self._analyzer.simplify(replaced)

    def _resolved(self, symbol: tirx.Var) -> Any:
        known = self._known.get(hash(symbol))
        return symbol if known is None else self.canonical(known[1])

    def equal(self, one: Any, other: Any) -> bool:
        """Whether two sizes are equal in every run; False where that is not proven."""
        first, second = self.canonical(one), self.canonical(other)
        if tvm_ffi.structural_equal(first, second):
            return True
        return bool(self._analyzer.can_prove_equal(first, second))

    def same_shape(self, one: tvm.ir.Type, other: tvm.ir.Type) -> bool:
        """Whether two tensors have equal sizes along all axes."""
        first, second = _extents(one), _extents(other)
        if first is None or second is None or len(first) != len(second):
            return False
        return all(map(self.equal, first, second))

    def bounds(self, size: Any) -> tuple[int, int]:
        """The least and the largest value of a size."""
        low, high = extent_bounds(size, self._sizes)
        least, most = extent_bounds(self.canonical(size), self._sizes)
        return max(low, least), min(high, most)

    def shape(self, ty: tvm.ir.Type) -> list[Any] | None:
        """The sizes of a tensor, each canonical; None where its shape is not known."""
        extents = _extents(ty)
        return None if extents is None else [self.canonical(one) for one in extents]

    def equate(self, one: Any, other: Any) -> bool:
        """Notes that two sizes are equal; returns whether that was new and could be noted.

        A symbol is replaced by the other size, unless that is written in the symbol itself.
        """
        first, second = self.canonical(one), self.canonical(other)
        if tvm_ffi.structural_equal(first, second):
            return False
        # The second one is the newer one, where both are symbols.
        for symbol, size in ((second, first), (first, second)):
            if isinstance(symbol, tirx.Var) and not _mentions(size, symbol):
                self._known[hash(symbol)] = symbol, size
                return True
        return False


def symbolic_shapes(
    mod: tvm.IRModule, sizes: Mapping[str, tuple[int, int]] | None = None
) -> SymbolicShapes:
    """Finds equal sizes of a module; ``sizes`` are bounds of symbols by name."""
    found = SymbolicShapes(sizes or {})
    functions = {str(var.name_hint): func for var, func in relax_functions(mod).items()}
    _equate_parameters(found, functions)
    for func in functions.values():
        for binding in all_bindings_of(func):
            for one, other in _equal_sizes(found, binding):
                found.equate(one, other)
    return found


def _extents(ty: tvm.ir.Type) -> list[Any] | None:
    shape = getattr(ty, "shape", None)
    return shape.values[:] if isinstance(shape, relax.ShapeExpr) else None


def _mentions(size: Any, symbol: tirx.Var) -> bool:
    return any(symbol.same_as(one) for one in tirx.analysis.undefined_vars(size))


def _pairs(one: Sequence[Any] | None, other: Sequence[Any] | None) -> Iterator[tuple[Any, Any]]:
    if one is not None and other is not None and len(one) == len(other):
        yield from zip(one, other, strict=True)


def _equal_sizes(found: SymbolicShapes, binding: relax.Binding) -> Iterator[tuple[Any, Any]]:
    """Sizes that a binding makes equal, or that a run would end at."""
    value = binding.value
    if isinstance(binding, relax.MatchCast):
        yield from _pairs(_sizes_of(value.ty), _sizes_of(binding.ty))
        return
    name = operator_name(value)
    if name == "relax.matmul":
        yield from _inner_sizes(*map(_extents, (value.args[0].ty, value.args[1].ty)))
    elif name == "relax.concat" and isinstance(value.args[0].ty, relax.TupleType):
        shapes = [_extents(field) for field in value.args[0].ty.fields[:]]
        axis = 0 if value.attrs.axis is None else int(value.attrs.axis)
        for other in shapes[1:]:
            rank = len(other or ())
            for place, pair in enumerate(_pairs(shapes[0], other)):
                if place != axis % max(rank, 1):
                    yield pair
    elif name == "relax.reshape":
        yield from _left_over(found, _extents(value.args[0].ty), _extents(value.ty))


def _sizes_of(ty: tvm.ir.Type) -> Sequence[Any] | None:
    return list(ty.values or []) if isinstance(ty, relax.ShapeType) else _extents(ty)


def _inner_sizes(one: list[Any] | None, other: list[Any] | None) -> Iterator[tuple[Any, Any]]:
    if one and other:
        yield one[-1], other[max(len(other) - 2, 0)]


def _left_over(
    found: SymbolicShapes, before: list[Any] | None, after: list[Any] | None
) -> Iterator[tuple[Any, Any]]:
    """The one size on each side that the others do not pair off."""
    if before is None or after is None:
        return
    left, rest = list(before), []
    for size in after:
        match = next((i for i, one in enumerate(left) if found.equal(one, size)), None)
        # A size of zero elements would say nothing of the others.
        if match is not None and found.bounds(size)[0] > 0:
            del left[match]
        elif not (isinstance(size, tirx.IntImm) and int(size) == 1):
            rest.append(size)
    left = [one for one in left if not (isinstance(one, tirx.IntImm) and int(one) == 1)]
    if len(left) == len(rest) == 1:
        yield left[0], rest[0]


# Symbols of functions, by all calls of them.


class _Differing:
    """Of a symbol that stands for different sizes in different calls."""


_DIFFERING = _Differing()


def _equate_parameters(found: SymbolicShapes, functions: Mapping[str, relax.Function]) -> None:
    """Joins a function's symbols with the sizes of all its calls, where those agree.

    Functions of a loop pass a size on to each other and to themselves, so that it is agreed on in
    rounds: a symbol without a size yet stands for any.
    """
    calls = list(_calls(functions))
    symbols = {hash(own): own for own, _ in calls}
    values: dict[int, Any] = {}
    changed = True
    while changed:
        changed = False
        for own, given in calls:
            key, value = hash(own), _valued(given, values, symbols)
            if value is None or values.get(key) is _DIFFERING:
                continue
            # Each symbol changes twice at most: to a size, and to none.
            if key not in values or not _is_same(values[key], value):
                values[key] = _DIFFERING if key in values else value
                changed = True
    for key, value in values.items():
        if value is not _DIFFERING:
            found.equate(value, symbols[key])


def _calls(functions: Mapping[str, relax.Function]) -> Iterator[tuple[tirx.Var, Any]]:
    """The symbols of parameters with the sizes that some call gives for them."""
    for func in functions.values():
        for binding in all_bindings_of(func):
            value = binding.value
            callee = value.op if isinstance(value, relax.Call) else None
            called = functions.get(str(getattr(callee, "name_hint", "")))
            if called is None or not isinstance(callee, tvm.ir.GlobalVar):
                continue
            if called.attrs is not None and "global_symbol" in called.attrs:
                continue
            for param, argument in zip(called.params[:], value.args[:], strict=True):
                for own, given in _pairs(_sizes_of(param.ty), _sizes_of(argument.ty)):
                    if isinstance(own, tirx.Var):
                        yield own, given


def _valued(size: Any, values: Mapping[int, Any], known: Mapping[int, tirx.Var]) -> Any:
    """A size of a caller, in symbols of what calls it; None where those have no value yet."""
    for symbol in tirx.analysis.undefined_vars(size):
        if hash(symbol) in values and values[hash(symbol)] is _DIFFERING:
            return _DIFFERING
        if hash(symbol) in known and hash(symbol) not in values:
            return None
    return structural_map(size, (tirx.Var, lambda one: values.get(hash(one), one)))


def _is_same(one: Any, other: Any) -> bool:
    return other is not _DIFFERING and bool(tvm_ffi.structural_equal(one, other))
