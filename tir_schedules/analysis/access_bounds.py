"""Which accesses of a kernel may miss their buffer, and what decides whether they do.

A kernel's loops run over its output, and it reads its inputs at places computed from the loops'
variables. That these lie inside follows from sizes that belong together, which the tensors of a run
may contradict, or from numbers in another tensor, which may be anything.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from tvm_ext.tir_schedules.analysis.affine import TWO_SIDED
from tvm_ext.tir_schedules.analysis.buffer_access import is_conditional, nodes, static_extent
from tvm_ext.tir_schedules.analysis.guarded_loads import children
from tvm_ext.tir_schedules.analysis.possible_values import PossibleValues, Tables

# No size is larger: an address has 48 bits.
_LARGEST_SIZE = 1 << 48

Access: TypeAlias = tvm.ir.TensorLoad | tirx.BufferStore


class StrayAccess(NamedTuple):
    """An access that other tensors decide on one axis, and that nothing keeps in its buffer.

    ``may_be_empty``: whether the axis may have no elements where the access is done.
    """

    access: Access
    axis: int
    may_be_empty: bool = False


@dataclass
class AccessBounds:
    """What has to hold for all accesses of a kernel to stay in their buffers.

    Attributes
    ----------
    conditions : list of Expr
        Of the kernel's sizes alone. Each is needed: without it the kernel leaves a buffer.
    stray : list[StrayAccess]
        Accesses that have to be kept inside at their place.
    """

    conditions: list[tvm.ir.Expr] = field(default_factory=list)
    stray: list[StrayAccess] = field(default_factory=list)


def accessed_buffer(access: Access) -> Any:
    """The buffer that is read or written."""
    return access.buffer if isinstance(access, tirx.BufferStore) else access.source


def access_key(access: Access) -> Any:
    """Equal for accesses of one element."""
    if isinstance(access, tirx.BufferStore):
        access = tirx.BufferLoad(access.buffer, access.indices)
    return tvm_ffi.StructuralKey(access)


def shape_of(param: tirx.Var) -> Sequence[Any]:
    """The sizes of a kernel's parameter, none if it is a number."""
    return list(param.shape) if _is_buffer(param) else []


def _is_buffer(param: tirx.Var) -> bool:
    return isinstance(param.ty, tirx.BufferType)


def access_bounds(func: tirx.PrimFunc, tables: Tables = lambda _: None) -> AccessBounds:
    """Looks at every access of a kernel that is not scheduled yet.

    ``tables`` says what is in those of its parameters that are constants.

    Nothing is found in a kernel of known sizes whose indices no tensor decides: what it may reach
    was known when it was written.
    """
    sizes = [size for param in func.params for size in shape_of(param)]
    accesses = nodes(func.body, tvm.ir.TensorLoad, tirx.BufferStore)
    if all(static_extent(size) is not None for size in sizes) and not any(
        _loads(index) for access in accesses for index in access.indices
    ):
        return AccessBounds()
    walk = _Walk(func, accesses, PossibleValues(func, tables))
    walk.statement(func.body)
    walk.look_at_guarded()
    return walk.found


def _loads(expr: tvm.ir.Expr) -> bool:
    return bool(nodes(expr, tvm.ir.TensorLoad))


class _Span(NamedTuple):
    """The least and the largest value of an integer, each an expression of sizes, or unknown.

    ``is_reached``: whether some iteration has each; else the true ones may lie further inside.
    """

    low: Any = None
    high: Any = None
    is_reached: bool = False

    def each(self, change: Callable[[Any], Any]) -> "_Span":
        """Both ends after ``change``, which keeps their order, where they are known."""
        low, high = (None if end is None else change(end) for end in (self.low, self.high))
        return _Span(low, high, self.is_reached)


def _both(operator: Callable[..., Any], one: Any, other: Any) -> Any:
    return None if one is None or other is None else operator(one, other)


def _either(one: _Span, other: _Span) -> _Span:
    """The span of what is one or the other."""
    return _Span(_both(tirx.min, one.low, other.low), _both(tirx.max, one.high, other.high))


class _Spans:
    """The spans of integers, from those of the loops' variables around them."""

    def __init__(self, analyzer: Analyzer, sizes: set[int], values: PossibleValues) -> None:
        self._analyzer = analyzer
        self._sizes = sizes
        self._values = values
        # Of the variables that are no sizes.
        self.known: dict[int, _Span] = {}
        # Those that are computed in another way, and what they stand for. A variable that nothing
        # holds any more would leave its hash to another one.
        self.computed: dict[int, tuple[tirx.Var, tvm.ir.Expr]] = {}

    def is_of_sizes(self, expr: Any) -> bool:
        """Whether the kernel's sizes alone decide a value."""
        return all(hash(v) in self._sizes for v in nodes(expr, tvm.ir.Var))

    def of(self, expr: Any) -> _Span:
        """The span of an expression; a product's factor and a divisor have to be of sizes."""
        if self.is_of_sizes(expr):
            return _Span(expr, expr, True)
        if isinstance(expr, tvm.ir.Var):
            return self._of_variable(expr)
        if is_conditional(expr):
            return self._of_choice(expr)
        if isinstance(expr, tirx.Cast):
            return self.of(expr.value).each(lambda value: value.astype(str(expr.ty)))
        look = _SPANS.get(type(expr))
        return _Span() if look is None else look(self, expr)

    def _of_variable(self, var: tirx.Var) -> _Span:
        key = hash(var)
        if key not in self.known and key in self.computed:
            self.known[key] = self.of_values(self.computed[key][1])
        return self.known.get(key, _Span())

    def of_values(self, expr: tvm.ir.Expr) -> _Span:
        """The span of what tables of constants decide."""
        values = self._values.of(expr)
        if values is None:
            return _Span()
        return _Span(*(tirx.const(int(end), str(expr.ty)) for end in (values.min(), values.max())))

    def _both_reached(self, expr: Any, *spans: _Span) -> bool:
        """Whether both sides have their least, or largest, value in one and the same iteration."""
        if not all(span.is_reached for span in spans):
            return False
        one, other = ({hash(v) for v in nodes(side, tvm.ir.Var)} for side in (expr.a, expr.b))
        return not (one & other) - self._sizes

    def _of_sum(self, expr: tirx.Add | tirx.Sub) -> _Span:
        one, other = self.of(expr.a), self.of(expr.b)
        if isinstance(expr, tirx.Sub):
            negative = other.each(lambda end: -end)
            other = _Span(negative.high, negative.low, negative.is_reached)
        low, high = _both(tirx.Add, one.low, other.low), _both(tirx.Add, one.high, other.high)
        return _Span(low, high, self._both_reached(expr, one, other))

    def _of_product(self, expr: tirx.Mul) -> _Span:
        factor, value = (expr.a, expr.b) if self.is_of_sizes(expr.a) else (expr.b, expr.a)
        if not self.is_of_sizes(factor):
            return _Span()
        span = self.of(value).each(lambda end: end * factor)
        if self._analyzer.can_prove(factor >= 0):
            return span
        is_negative = self._analyzer.can_prove(factor <= 0)
        return _Span(span.high, span.low, span.is_reached) if is_negative else _Span()

    def _of_quotient(self, expr: tirx.FloorDiv) -> _Span:
        if not self.is_of_sizes(expr.b) or not self._analyzer.can_prove(expr.b > 0):
            return _Span()
        return self.of(expr.a).each(lambda end: end // expr.b)

    def _of_remainder(self, expr: tirx.FloorMod) -> _Span:
        if not self.is_of_sizes(expr.b) or not self._analyzer.can_prove(expr.b > 0):
            return _Span()
        return _Span(tirx.const(0, str(expr.ty)), expr.b - 1)

    def _of_bound(self, expr: tirx.Min | tirx.Max) -> _Span:
        """One side is enough to know the bound on that side."""
        one, other = self.of(expr.a), self.of(expr.b)
        operator = tirx.min if isinstance(expr, tirx.Min) else tirx.max
        low, high = _both(operator, one.low, other.low), _both(operator, one.high, other.high)
        if isinstance(expr, tirx.Min) and high is None:
            high = other.high if one.high is None else one.high
        if isinstance(expr, tirx.Max) and low is None:
            low = other.low if one.low is None else one.low
        return _Span(low, high, self._both_reached(expr, one, other))

    def _of_choice(self, expr: Any) -> _Span:
        if is_conditional(expr):
            condition, first, second = expr.args
        else:
            condition, first, second = expr.condition, expr.true_value, expr.false_value
        one, other = self.of(first), self.of(second)
        if not self.is_of_sizes(condition):
            return _either(one, other)
        low, high = (
            _both(lambda first, second: tirx.Select(condition, first, second), *ends)
            for ends in ((one.low, other.low), (one.high, other.high))
        )
        return _Span(low, high, one.is_reached and other.is_reached)


_SPANS: dict[type, Callable[[_Spans, Any], _Span]] = {
    tirx.Add: _Spans._of_sum,
    tirx.Sub: _Spans._of_sum,
    tirx.Mul: _Spans._of_product,
    tirx.FloorDiv: _Spans._of_quotient,
    tirx.FloorMod: _Spans._of_remainder,
    tirx.Min: _Spans._of_bound,
    tirx.Max: _Spans._of_bound,
    tirx.Select: _Spans._of_choice,
}


def _negated(condition: Any) -> Any:
    """Not ``condition``, as TVM's prover can use it."""
    if isinstance(condition, tirx.Or):
        return tirx.And(_negated(condition.a), _negated(condition.b))
    return tirx.Not(condition)


class _Numbers:
    """Expressions of integers, with a variable for each part that is computed in another way.

    What is loaded, converted from floating point, or called for, is only equal to itself, and what
    is loaded from a tensor that ``is_settled`` says will be written again is equal to nothing.
    ``computed`` gets each variable and what it stands for, by its hash.
    """

    def __init__(
        self,
        is_settled: Callable[[Any], bool],
        computed: dict[int, tuple[tirx.Var, tvm.ir.Expr]],
    ) -> None:
        self._is_settled = is_settled
        self._computed = computed
        self._variables: dict[Any, tirx.Var] = {}
        self._values: dict[int, Any] = {}

    @property
    def has_bound(self) -> bool:
        """Whether a name may stand for different values at different places."""
        return bool(self._values)

    def bind(self, var: tirx.Var, value: Any) -> None:
        """From here on ``var`` is ``value``."""
        self._values[hash(var)] = self.of(value)

    def of(self, expr: Any) -> Any:
        """The expression with variables for its other parts."""
        if isinstance(expr, tvm.ir.Var):
            return self._values.get(hash(expr), expr)
        if isinstance(expr, tirx.IntImm):
            return expr
        if is_conditional(expr):
            return tirx.if_then_else(*map(self.of, expr.args))
        if isinstance(expr, tirx.Select):
            parts = (expr.condition, expr.true_value, expr.false_value)
            return tirx.Select(*map(self.of, parts))
        if isinstance(expr, tirx.Not):
            return tirx.Not(self.of(expr.a))
        if isinstance(expr, tirx.Cast) and _is_integer(expr.value):
            return self.of(expr.value).astype(str(expr.ty))
        if type(expr) in TWO_SIDED and _is_integer(expr.a):
            a, b = expr.a, expr.b
            changed = self.of(a), self.of(b)
            return expr if changed[0] is a and changed[1] is b else type(expr)(*changed)
        number = tirx.Var("number", str(expr.ty))
        self._computed[hash(number)] = number, expr
        if not all(self._is_settled(load.source) for load in nodes(expr, tvm.ir.TensorLoad)):
            return number
        return self._variables.setdefault(tvm_ffi.StructuralKey(expr), number)


def _is_integer(expr: tvm.ir.Expr) -> bool:
    return any(word in str(expr.ty) for word in ("int", "bool"))


class _Guarded(NamedTuple):
    """An access under a condition, and which conditions of sizes are around it."""

    access: StrayAccess
    index: Any
    size: Any
    entered: tuple[Any, ...]


class _Walk:
    """Goes through a kernel's statements with what is known at each place."""

    def __init__(
        self, func: tirx.PrimFunc, accesses: Sequence[Access], values: PossibleValues
    ) -> None:
        self.found = AccessBounds()
        self._analyzer = Analyzer()
        self._spans = _Spans(self._analyzer, self._bind_sizes(func), values)
        self._numbers = _Numbers(
            lambda buffer: not self._stores_ahead[hash(buffer)], self._spans.computed
        )
        # Conditions of sizes that hold here, those of the loops that run at all among them.
        self._entered: list[Any] = []
        # How many conditions are around that anything else decides, and that never hold.
        self._guards = 0
        self._nevers = 0
        self._stores_ahead = Counter(
            hash(access.buffer) for access in accesses if isinstance(access, tirx.BufferStore)
        )
        # Of the tensors of integers that the kernel writes: what it puts there.
        self._written: dict[int, _Span] = {}
        self._guarded: list[_Guarded] = []
        # Places with conditions of their own: how many there were, and where this is.
        self._places = 0
        self._place = 0
        self._seen: set[Any] = set()

    def _bind_sizes(self, func: tirx.PrimFunc) -> set[int]:
        found = set()
        for param in func.params:
            for size in shape_of(param) if _is_buffer(param) else [param]:
                for var in nodes(size, tvm.ir.Var):
                    limit = _LARGEST_SIZE if "64" in str(var.ty) else (1 << 31) - 1
                    first, count = (tirx.const(number, str(var.ty)) for number in (0, limit))
                    self._analyzer.bind(var, tvm.ir.Range.from_min_extent(first, count), True)
                    found.add(hash(var))
        return found

    # Statements -----------------------------------------------------------------------------------

    def statement(self, stmt: Any) -> None:
        """Looks at a statement and what is inside."""
        look = _LOOKS.get(type(stmt))
        if look is not None:
            look(self, stmt)

    def _loop(self, loop: tirx.For) -> None:
        self._expressions(loop.min, loop.extent)
        with self._in_loops([(loop.loop_var, loop.min, loop.extent)]):
            self.statement(loop.body)

    def _sequence(self, sequence: tirx.SeqStmt) -> None:
        for each in sequence.seq:
            self.statement(each)

    def _store(self, store: tirx.BufferStore) -> None:
        self._expressions(store.value, *store.indices)
        self._access(store)
        self._note_written(store)

    def _branch(self, branch: tirx.IfThenElse) -> None:
        self._expressions(branch.condition)
        self._either_side(branch.condition, branch.then_case, branch.else_case, self.statement)

    def _while(self, loop: tirx.While) -> None:
        self._expressions(loop.condition)
        with self._under(loop.condition):
            self.statement(loop.body)

    def _variable(self, bind: tirx.Bind) -> None:
        self._expressions(bind.value)
        self._numbers.bind(bind.var, bind.value)

    def _block(self, realize: s_tir.SBlockRealize) -> None:
        block = realize.block
        self._expressions(*realize.iter_values)
        loops = [(one.var, one.dom.min, one.dom.extent) for one in block.iter_vars]
        with self._in_loops(loops), self._under(realize.predicate):
            if block.init is not None:
                self.statement(block.init)
            self.statement(block.body)

    @contextmanager
    def _in_loops(self, loops: Sequence[tuple[tirx.Var, Any, Any]]) -> Iterator[None]:
        with self._under(*(extent > 0 for _, _, extent in loops)):
            for var, *limits in loops:
                # TVM writes a zero of 32 bits in front of sizes of 64.
                first, extent = (self._numbers.of(each).astype(str(var.ty)) for each in limits)
                self._analyzer.bind(var, tvm.ir.Range.from_min_extent(first, extent), True)
                start, end = self._spans.of(first), self._spans.of(first + extent - 1)
                is_box = self._spans.is_of_sizes(first) and self._spans.is_of_sizes(extent)
                self._spans.known[hash(var)] = _Span(start.low, end.high, is_box)
            yield

    @contextmanager
    def _under(self, *conditions: Any) -> Iterator[None]:
        """Within what is done only where all ``conditions`` hold."""
        told = [
            each
            if isinstance(each, tirx.IntImm)
            else self._analyzer.simplify(self._numbers.of(each))
            for each in conditions
        ]
        nevers = sum(static_extent(condition) == 0 for condition in told)
        told = [condition for condition in told if static_extent(condition) is None]
        of_sizes = [c for c in told if self._spans.is_of_sizes(c)]
        guards, entered = len(told) - len(of_sizes), len(self._entered)
        outer, self._places = self._place, self._places + 1
        self._place = self._places
        scopes = [self._analyzer.constraint_scope(condition) for condition in told]
        for scope in scopes:
            scope.__enter__()
        self._entered += of_sizes
        self._guards += guards
        self._nevers += nevers
        try:
            yield
        finally:
            self._place = outer
            self._guards -= guards
            self._nevers -= nevers
            del self._entered[entered:]
            for scope in reversed(scopes):
                scope.__exit__(None, None, None)

    def _either_side(
        self, condition: Any, first: Any, second: Any, look: Callable[[Any], None]
    ) -> None:
        with self._under(condition):
            look(first)
        if second is not None:
            with self._under(_negated(condition)):
                look(second)

    def _note_written(self, store: tirx.BufferStore) -> None:
        """Once all stores into a tensor were seen, what it holds is known."""
        key = hash(store.buffer)
        self._stores_ahead[key] -= 1
        if "int" not in str(store.value.ty):
            return
        span = self._spans.of(self._numbers.of(store.value))
        known = self._written.get(key)
        self._written[key] = span if known is None else _either(known, span)

    def _note_read(self, load: tvm.ir.TensorLoad) -> None:
        key = hash(load.source)
        if key in self._written and not self._stores_ahead[key]:
            number = self._numbers.of(load)
            if self._spans.of(number).low is None:
                self._spans.known[hash(number)] = self._written[key]

    # Expressions ----------------------------------------------------------------------------------

    def _expressions(self, *exprs: Any) -> None:
        for expr in exprs:
            self._expression(expr)

    def _expression(self, expr: Any) -> None:
        found = nodes(expr, tvm.ir.TensorLoad, tvm.ir.Call, tirx.Let)
        if any(is_conditional(node) or isinstance(node, tirx.Let) for node in found):
            self._parts(expr)
            return
        # Those in indices first.
        for node in reversed(found):
            if isinstance(node, tvm.ir.TensorLoad):
                self._load(node)

    def _parts(self, expr: Any) -> None:
        """An expression with branches or names: what holds differs from part to part."""
        if is_conditional(expr):
            condition, first, second = expr.args
            self._expression(condition)
            self._either_side(condition, first, second, self._expression)
            return
        if isinstance(expr, tirx.Let):
            self._expression(expr.value)
            self._numbers.bind(expr.var, expr.value)
            self._expression(expr.body)
            return
        for part in children(expr):
            self._parts(part)
        if isinstance(expr, tvm.ir.TensorLoad):
            self._load(expr)

    def _load(self, load: tvm.ir.TensorLoad) -> None:
        self._note_read(load)
        self._access(load)

    # Accesses -------------------------------------------------------------------------------------

    def _access(self, access: Access) -> None:
        if self._nevers:
            return
        key = (self._place, access_key(access))
        if self._numbers.has_bound or key not in self._seen:
            self._seen.add(key)
            shape = accessed_buffer(access).shape
            for axis, (index, size) in enumerate(zip(access.indices, shape, strict=True)):
                if not isinstance(index, tirx.Ramp):
                    self._check(StrayAccess(access, axis), index, size)

    def _check(self, found: StrayAccess, index: Any, size: Any) -> None:
        place, count = static_extent(index), static_extent(size)
        if place is not None and count is not None and 0 <= place < count:
            return
        if _loads(index) and self._is_inside(index, self._spans.of_values(index), size):
            return
        index = self._numbers.of(index)
        span = self._spans.of(index)
        if self._is_inside(index, span, size):
            return
        if self._guards:
            self._guarded.append(_Guarded(found, index, size, tuple(self._entered)))
            return
        # Where it is done at all, nothing else than an element in each place will do.
        is_any = size > 0
        self._require(is_any)
        with self._under(is_any):
            span = self._spans.of(index)
            if self._is_inside(index, span, size):
                return
        if span.is_reached and span.low is not None and span.high is not None:
            self._require(span.low >= 0)
            self._require(span.high < size)
        else:
            self.found.stray.append(found)

    def look_at_guarded(self) -> None:
        """Once all conditions are known: what other accesses need may be enough for these."""
        for access, index, size, entered in self._guarded:
            with self._under(*entered), self._under(*self.found.conditions):
                span = self._spans.of(index)
                if not self._is_inside(index, span, size):
                    may_be_empty = not self._analyzer.can_prove(size > 0)
                    self.found.stray.append(access._replace(may_be_empty=may_be_empty))

    def _is_inside(self, index: Any, span: _Span, size: Any) -> bool:
        prove = self._analyzer.can_prove
        return (prove(index >= 0) or (span.low is not None and prove(span.low >= 0))) and (
            prove(index < size) or (span.high is not None and prove(span.high < size))
        )

    def _require(self, condition: Any) -> None:
        """Notes a condition of sizes, which has to hold wherever the place is reached."""
        if self._analyzer.can_prove(condition):
            return
        condition = tirx.any(*map(tirx.Not, self._entered), condition)
        if not any(tvm_ffi.structural_equal(condition, known) for known in self.found.conditions):
            self.found.conditions.append(condition)


_LOOKS: dict[type, Callable[[_Walk, Any], None]] = {
    s_tir.SBlockRealize: _Walk._block,
    tirx.For: _Walk._loop,
    tirx.SeqStmt: _Walk._sequence,
    tirx.BufferStore: _Walk._store,
    tirx.IfThenElse: _Walk._branch,
    tirx.While: _Walk._while,
    tirx.Bind: _Walk._variable,
    tirx.Evaluate: lambda walk, stmt: walk._expressions(stmt.value),
    tirx.AttrStmt: lambda walk, stmt: walk.statement(stmt.body),
}
