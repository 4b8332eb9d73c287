"""Replaces calls of elementary functions in a kernel by expressions that run in vectors."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm_ffi import (
    StructuralMutator,
    structural_equal,
    structural_hash,
    structural_map,
    structural_mutate,
    structural_walk,
)

from tvm_ext.tir_schedules.analysis.buffer_access import among, depends, nodes
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.cpu.parallel_vectorize import COMPARISONS
from tvm_ext.tir_schedules.cpu.vector_math import exponential, logarithm, trigonometric
from tvm_ext.tir_schedules.cpu.vector_math.expression import Let
from tvm_ext.tir_schedules.cpu.vector_math.logarithm import CONSTANT_POWERS, power
from tvm_ext.tir_schedules.statements import changed_block, stack_array

# Takes deep expressions apart: the result of an inner part waits in a small array.
#
# Written out, every function names its intermediate values. To learn about a name, TVM's
# simplifier puts what it stands for in its place: harmless for one function, but the work
# multiplies with each that is nested. An array as long as the vector ends that; it is on the
# stack, and LLVM keeps it in a register. A function that one store calls twice gets an array as
# well, and is computed once.
#
# Some operations are visited twice by TVM, and what they hold twice by each of them:
# VectorizeLoop goes twice into a vector that a scalar multiplies, StmtSimplify into what becomes
# an integer. A name that is met three times is an error ("Let cannot bind the same var to two
# different values"), and twenty such operations, as the steps of quantisation fuse to, take
# minutes. A function of what became an integer is met so often under a single one.


_CONDITIONAL = "if_then_else"

# Operations visited twice that a function may be under, and that any expression may be under.
_AROUND_FUNCTION = 1
_AROUND_ANY = 8

# Choices in one expression that TVM's simplifier soon goes through.
_FEW_CHOICES = 8

# TVM computes this type in float32. It does not look into what a name stands for, and rounds by
# writing out twice what it rounds.
_LEGALISED = "bfloat16"


def with_staged_calls(body: tirx.Stmt, is_function: Callable[[tvm.ir.Call], bool]) -> tirx.Stmt:
    """``body`` in which no call that ``is_function`` has another one among its arguments.

    What is taken out of a branch is computed, and its memory read, only where the branch is taken.
    """
    staged = structural_map(body, (tirx.For, lambda loop: _staged_loop(loop, is_function)))
    return structural_mutate(
        staged,
        [
            (tirx.For, lambda loop, rest: loop if _is_vector(loop) else rest.default_mutate(loop)),
            (tirx.BufferStore, lambda store, _rest: _staged_store(store, is_function)),
        ],
    )


def _is_vector(loop: tirx.For) -> bool:
    return bool(loop.kind == tirx.ForKind.VECTORIZED)


def _staged_loop(loop: tirx.For, is_function: Callable[[tvm.ir.Call], bool]) -> tirx.Stmt:
    """A vectorised loop with an array, declared around it, for each inner call."""
    if not _is_vector(loop):
        return loop
    stage = _Stage(is_function, loop.loop_var - loop.min, loop.extent, _lanes(loop))
    body = structural_map(loop.body, (tirx.BufferStore, stage.split))
    if not stage.declarations:
        return loop
    body = structural_map(body, (s_tir.SBlockRealize, lambda block: _with_lane(block, loop)))
    vector = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, None, loop.annotations)
    return tirx.SeqStmt([*stage.declarations, vector])


def _with_lane(realize: s_tir.SBlockRealize, loop: tirx.For) -> s_tir.SBlockRealize:
    """A block that names the loop's variable, with an axis for it, as TVM wants it."""
    block = realize.block
    if not block.iter_vars or not depends(block.body, loop.loop_var):
        return realize
    lane = tirx.Var("v_lane", str(loop.loop_var.ty))
    limits = tvm.ir.Range.from_min_extent(loop.min, loop.extent)
    axes = [*block.iter_vars, tirx.IterVar(limits, lane, tirx.IterVar.DataPar)]
    closed = changed_block(
        block, iter_vars=axes, body=substitute(block.body, {loop.loop_var: lane})
    )
    return s_tir.SBlockRealize([*realize.iter_values, loop.loop_var], realize.predicate, closed)


def _lanes(loop: tirx.For) -> list[tirx.Var]:
    """The loop's variable, and those of blocks in it that depend on it."""
    lanes = [loop.loop_var]

    def look(realize: s_tir.SBlockRealize) -> None:
        pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
        lanes.extend(axis.var for axis, value in pairs if depends(value, *lanes))

    structural_walk(loop.body, (s_tir.SBlockRealize, look), order="pre")
    return lanes


def _staged_store(store: tirx.BufferStore, is_function: Callable[[tvm.ir.Call], bool]) -> tirx.Stmt:
    """What is left: stores outside of vectorised loops."""
    stage = _Stage(is_function, tirx.const(0, "int32"), tirx.const(1, "int32"))
    split = stage.split(store)
    return tirx.SeqStmt([*stage.declarations, *split.seq]) if stage.declarations else store


class _Stage:
    """The arrays of one loop; ``index`` is the position in them, below ``size``.

    ``lanes`` are the variables that differ from lane to lane of a vectorised loop.
    """

    def __init__(
        self,
        is_function: Callable[[tvm.ir.Call], bool],
        index: tirx.Expr,
        size: tirx.Expr,
        lanes: Sequence[tirx.Var] = (),
    ) -> None:
        self.is_function = is_function
        self.index = index
        self.size = size
        self.lanes = lanes
        # The arrays, to stand before the loop.
        self.declarations: list[tirx.Stmt] = []

    def split(self, store: tirx.BufferStore) -> tirx.Stmt:
        """The store, after one for each function that another one takes."""
        split = _StagedSplit(self, store.value)
        if not split.before:
            return store
        last = tirx.BufferStore(store.buffer, split.value, list(store.indices))
        return tirx.SeqStmt([*split.before, last])

    def varies(self, value: tirx.Expr) -> bool:
        """Whether ``value`` becomes a vector."""
        return depends(value, *self.lanes)


@dataclass(frozen=True, eq=False)
class _Condition:
    """What has to hold for a branch to be taken; ``choose`` makes an expression of that branch."""

    holds: tirx.Expr
    choose: Callable[..., tirx.Expr]


@dataclass(frozen=True)
class _Staged:
    """A value that waits in an array, computed where all of ``conditions`` hold."""

    value: tirx.Expr
    conditions: tuple[_Condition, ...]
    load: tirx.Expr


class _StagedSplit:
    """One stored value: the stores that go before it, and what is left of it."""

    def __init__(self, stage: _Stage, value: tirx.Expr) -> None:
        self.before: list[tirx.BufferStore] = []
        self._stage = stage
        self._conditions: tuple[_Condition, ...] = ()
        self._staged: list[_Staged] = []
        # All in one walk: kernels store ten thousands of sums of products, in which nothing is.
        parts = nodes(value, tvm.ir.Call, tirx.Select, tirx.Mul, tirx.Cast)
        calls = [part for part in parts if isinstance(part, tvm.ir.Call)]
        choices = [part for part in parts if isinstance(part, tirx.Select)]
        functions = [call for call in calls if stage.is_function(call)]
        repeatable = [*functions, *(choices if len(choices) > _FEW_CHOICES else ())]
        self._uses = Counter(structural_hash(part) for part in repeatable)
        # Operations visited twice around what is being taken apart.
        self._twice = _doubled_by(str(value.ty)) if str(value.ty) == _LEGALISED else 0
        visited_twice = sum(_may_be_visited_twice(part) for part in parts)
        if not repeatable and visited_twice < _AROUND_ANY and not self._twice:
            self.value = value
            return
        self.value = structural_mutate(
            value,
            [
                (tvm.ir.Call, self._call),
                (tirx.Select, self._select),
                (tirx.Mul, self._product),
                (tirx.Cast, self._cast),
            ],
        )

    def _call(self, call: tvm.ir.Call, mutator: StructuralMutator) -> tirx.Expr:
        if isinstance(call.op, tvm.ir.Op) and str(call.op.name).endswith(_CONDITIONAL):
            return self._branch(call.args, tirx.if_then_else, mutator)
        if not self._stage.is_function(call):
            return mutator.default_mutate(call)
        legalised = str(call.ty) == _LEGALISED
        waits = (
            legalised
            or self._twice > _AROUND_FUNCTION
            or (self._twice > 0 and any(map(_becomes_integer, call.args)))
            or self._uses[structural_hash(call)] > 1
        )
        twice = 0 if waits else self._twice
        arguments = [self._argument(a, twice, mutator) for a in call.args]
        dtype = "float32" if legalised else str(call.ty)
        flat = tirx.call_intrin(dtype, call.op, *arguments)
        return self._put(flat).astype(str(call.ty)) if waits else flat

    def _argument(self, value: tirx.Expr, twice: int, mutator: StructuralMutator) -> tirx.Expr:
        changed = self._inside(value, twice, mutator)
        if str(changed.ty) == _LEGALISED:
            changed = changed.astype("float32")
        waits = self._functions_below(changed) or _compares(changed) or _is_legalised(changed)
        return self._put(changed) if waits else changed

    def _product(self, product: tirx.Mul, mutator: StructuralMutator) -> tirx.Expr:
        factors = (product.a, product.b)
        vectors = [self._stage.varies(factor) for factor in factors]
        if not _may_be_visited_twice(product) or all(vectors) or not any(vectors):
            return mutator.default_mutate(product)
        return tirx.Mul(
            *(
                self._within(factor, mutator) if is_vector else factor
                for factor, is_vector in zip(factors, vectors, strict=True)
            )
        )

    def _cast(self, cast: tirx.Cast, mutator: StructuralMutator) -> tirx.Expr:
        dtype = str(cast.ty)
        if not _may_be_visited_twice(cast) or ("float" in dtype and dtype != _LEGALISED):
            return mutator.default_mutate(cast)
        return tirx.Cast(dtype, self._within(cast.value, mutator, _doubled_by(dtype)))

    def _within(self, value: tirx.Expr, mutator: StructuralMutator, more: int = 1) -> tirx.Expr:
        """What an operation that is visited twice holds; it waits where they are too many."""
        waits = self._twice >= _AROUND_ANY
        changed = self._inside(value, 0 if waits else self._twice + more, mutator)
        return self._put(changed) if waits else changed

    def _inside(self, value: tirx.Expr, twice: int, mutator: StructuralMutator) -> tirx.Expr:
        around, self._twice = self._twice, twice
        changed = mutator.mutate(value)
        self._twice = around
        return changed

    def _select(self, select: tirx.Select, mutator: StructuralMutator) -> tirx.Expr:
        parts = (select.condition, select.true_value, select.false_value)
        choice = self._branch(parts, tirx.Select, mutator)
        repeated = self._uses[structural_hash(select)] > 1
        return self._put(choice) if repeated and self._may_wait(choice) else choice

    def _may_wait(self, choice: tirx.Expr) -> bool:
        """Whether an array is no harm: of places alike in all lanes it would make a gather."""
        stage = self._stage
        is_number = str(choice.ty) not in ("bool", _LEGALISED)
        return is_number and (not stage.lanes or stage.varies(choice))

    def _branch(
        self, parts: Sequence[tirx.Expr], choose: Any, mutator: StructuralMutator
    ) -> tirx.Expr:
        condition = mutator.mutate(parts[0])
        around = self._conditions
        values = []
        for value, holds in zip(parts[1:], (condition, tirx.Not(condition)), strict=True):
            self._conditions = (*around, _Condition(holds, choose))
            values.append(mutator.mutate(value))
        self._conditions = around
        return choose(condition, *values)

    def _put(self, value: tirx.Expr) -> tirx.Expr:
        conditions = self._conditions_of(value)
        for known in self._staged:
            enclosing = conditions[: len(known.conditions)]
            if known.conditions == enclosing and structural_equal(known.value, value):
                return known.load
        guarded = value
        for condition in reversed(conditions):
            otherwise = tirx.const(0, str(value.ty))
            guarded = condition.choose(condition.holds, guarded, otherwise)
        declarations, index = self._stage.declarations, self._stage.index
        name = f"staged{len(declarations)}"
        array, declaration = stack_array(self._stage.size, str(value.ty), name)
        declarations.append(declaration)
        self.before.append(tirx.BufferStore(array, guarded, [index]))
        load = tirx.BufferLoad(array, [index])
        self._staged.append(_Staged(value, conditions, load))
        return load

    def _conditions_of(self, value: tirx.Expr) -> tuple[_Condition, ...]:
        """Those that ``value`` has to wait for.

        Select computes both of what it chooses from, unless TVM makes a branch of it, which it does
        where memory is read. Written out with each value, its condition would be computed anew.
        """
        conditions = self._conditions
        if self._reads_memory(value) or _divides_integers(value):
            return conditions
        while conditions and conditions[-1].choose is tirx.Select:
            conditions = conditions[:-1]
        return conditions

    def _reads_memory(self, value: tirx.Expr) -> bool:
        arrays = [staged.load.source for staged in self._staged]
        return not all(among(load.source, arrays) for load in nodes(value, tvm.ir.TensorLoad))

    def _functions_below(self, value: tvm.ir.Expr) -> list[tvm.ir.Call]:
        found: list[tvm.ir.Call] = []
        structural_walk(value, (tvm.ir.Call, found.append))
        return [call for call in found if self._stage.is_function(call)]


def _may_be_visited_twice(part: tirx.Expr) -> bool:
    """Whether it is a product or a cast of floating-point numbers, not one in an index."""
    if isinstance(part, tirx.Cast):
        return "float" in str(part.value.ty)
    return isinstance(part, tirx.Mul) and "float" in str(part.ty)


def _becomes_integer(value: tvm.ir.Expr) -> bool:
    """Whether a number below becomes an integer, as in quantisation."""
    casts = nodes(value, tirx.Cast)
    return any(_may_be_visited_twice(cast) and "float" not in str(cast.ty) for cast in casts)


def _compares(value: tvm.ir.Expr) -> bool:
    """Whether a comparison is below: TVM's simplifier fails on some of whole vectors."""
    found: list[Any] = []
    structural_walk(value, (COMPARISONS, found.append))
    return bool(found)


def _divides_integers(value: tirx.Expr) -> bool:
    divisions = nodes(value, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
    return any("int" in str(division.ty) for division in divisions)


def _doubled_by(dtype: str) -> int:
    """How many operations that are visited twice a cast to ``dtype`` is worth."""
    return _AROUND_FUNCTION + 1 if dtype == _LEGALISED else 1


def _is_legalised(value: tvm.ir.Expr) -> bool:
    found: list[Any] = []
    structural_walk(value, (tirx.Cast, lambda cast: found.append(str(cast.value.ty))))
    return _LEGALISED in found


# By the name of TVM's intrinsic.
FUNCTIONS: dict[str, Callable[..., tirx.Expr]] = {
    "acos": trigonometric.acos,
    "acosh": logarithm.acosh,
    "asin": trigonometric.asin,
    "asinh": logarithm.asinh,
    "atan": trigonometric.atan,
    "atanh": logarithm.atanh,
    "cos": trigonometric.cos,
    "cosh": exponential.cosh,
    "erf": exponential.erf,
    "exp": exponential.exp,
    "exp10": exponential.exp10,
    "exp2": exponential.exp2,
    "log": logarithm.log,
    "log10": logarithm.log10,
    "log1p": logarithm.log1p,
    "log2": logarithm.log2,
    "pow": power,
    "sigmoid": exponential.sigmoid,
    "sin": trigonometric.sin,
    "sinh": exponential.sinh,
    "tan": trigonometric.tan,
    "tanh": exponential.tanh,
}

# Intrinsics that stay calls of the C library, one an element.
LIBRARY_CALLS = frozenset({"atan2", "fmod", "hypot", "ldexp", "nextafter"})

# Types that are computed as float32, and rounded once.
_NARROW = ("float16", "bfloat16")

# Says of a kernel that no exponential in it is of more than zero.
_EXPONENTS_BELOW_ZERO = "tvm_ext.exponents_below_zero"


def noted_exponents_below_zero(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with the note that its exponentials may be shorter ones.

    They are of zero and less, and what is no normal float may be zero.
    """
    return func.with_attr(_EXPONENTS_BELOW_ZERO, True)


@dataclass(frozen=True)
class Rewritten:
    """A kernel after ``with_vector_math``.

    Attributes
    ----------
    func : tirx.PrimFunc
        The kernel; the one given when nothing was replaced or taken apart.
    replaced : dict[str, int]
        Calls that were replaced, by function.
    left : dict[str, int]
        Calls of the C library that remain, by function and type, as in "exp of float64".
    """

    func: tirx.PrimFunc
    replaced: dict[str, int]
    left: dict[str, int]


def with_vector_math(func: tirx.PrimFunc, features: Collection[str] = ()) -> Rewritten:
    """The kernel ``func`` with the functions of ``FUNCTIONS`` written out.

    ``features`` are LLVM's names of what the CPU can do.

    Made for kernels whose loops are final: an expression of thirty operations is no longer
    recognised as one call that is better not computed twice.
    """
    replaced: Counter[str] = Counter()
    left: Counter[str] = Counter()
    has_ldexp = "avx512f" in features
    noted = func.attrs is not None and _EXPONENTS_BELOW_ZERO in func.attrs
    functions = FUNCTIONS | {"exp": exponential.exp_of_negative} if noted else FUNCTIONS

    def replace(call: tvm.ir.Call) -> tvm.ir.Expr:
        name = _intrinsic(call)
        if name not in FUNCTIONS and name not in LIBRARY_CALLS:
            return call
        written = _written_out(call, functions, has_ldexp) if name in FUNCTIONS else None
        if written is None:
            left[f"{name} of {call.ty}"] += 1
            return call
        replaced[name] += 1
        return written

    staged = with_staged_calls(func.body, lambda call: _intrinsic(call) in FUNCTIONS)
    body = structural_map(staged, (tvm.ir.Call, replace))
    changed = func if body.same_as(func.body) else func.with_body(body)
    return Rewritten(changed, dict(replaced), dict(left))


def _intrinsic(call: tvm.ir.Call) -> str:
    """Its name without the prefix, which is "tirx" or "prim"."""
    return str(call.op.name).rpartition(".")[2] if isinstance(call.op, tvm.ir.Op) else ""


def _written_out(
    call: tvm.ir.Call, functions: Mapping[str, Callable[..., tirx.Expr]], has_ldexp: bool
) -> tirx.Expr | None:
    """The expression for a call of one of ``functions``; None for a type that has none."""
    dtype, name, arguments = str(call.ty), _intrinsic(call), list(call.args)
    let = Let(has_ldexp)
    if dtype == "float32":
        return _float32(let, name, functions[name], arguments)
    if dtype in _NARROW:
        wide = [argument.astype("float32") for argument in arguments]
        return _float32(let, name, functions[name], wide).astype(dtype)
    return None


def _float32(
    let: Let, name: str, function: Callable[..., tirx.Expr], arguments: list[tirx.Expr]
) -> tirx.Expr:
    if name == "pow" and isinstance(arguments[1], tirx.FloatImm):
        constant = CONSTANT_POWERS.get(float(arguments[1].value))
        if constant is not None:
            return let.around(constant(let, let(arguments[0])))
    return let.around(function(let, *(let(argument) for argument in arguments)))
