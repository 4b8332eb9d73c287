"""KeepStateInPlace: what a model appends to its state is written into a buffer with room for it."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.passes.attention_fusion import attention_function
from tvm_ext.relay_passes.binding_rewriter import GraphView
from tvm_ext.relay_passes.graph_pass import (
    INJECTIVE,
    OPAQUE,
    graph_pass,
    record_applied,
    record_refusal,
)
from tvm_ext.relay_passes.spans import bindings_of
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent
from tvm_ext.tir_schedules.cpu.attention.attention import refusal
from tvm_ext.tir_schedules.operators.append_rows import ATTRIBUTE as APPENDS_BY_SEQUENCE
from tvm_ext.tir_schedules.operators.attention import ATTRIBUTE, AttentionCompute
from tvm_ext.tir_schedules.operators.recurrence import loop, number
from tvm_ext.tir_schedules.statements import FlatViews, sequence

STATE_ATTRIBUTE = "tvm_ext.state"
"""Of ``main``: what ``StateInPlace`` says, as text."""

CAPACITY = "session_capacity"
"""The name of the size of all buffers along the axis that grows."""

HELD = "session_held"
"""The name of the input whose first size is how many rows the buffers hold."""


@dataclass(frozen=True)
class StateInPlace:
    """The state that a program keeps in its inputs' own memory.

    Attributes
    ----------
    inputs : list[list[int]]
        The position of each such input, and the axis that has room for more rows.
    outputs : list[int]
        The positions of the outputs that are no outputs any more.
    copied : list[int]
        The positions of those inputs whose rows are copied in each run, because something else than
        attention reads them.
    """

    inputs: list[list[int]]
    outputs: list[int]
    copied: list[int]

    @classmethod
    def of(cls, mod: tvm.IRModule) -> "StateInPlace | None":
        """What the pass left at a module; None where it kept nothing in place."""
        attrs = mod["main"].attrs
        if attrs is None or STATE_ATTRIBUTE not in attrs:
            return None
        return cls(**json.loads(str(attrs[STATE_ATTRIBUTE])))


@graph_pass
class KeepStateInPlace:
    """Writes the new rows of a state into the buffer of the old ones, and reads both there.

    Before: ``main(x, past): all = concat([past, new], axis=2); y = attention(q, all, v)``, which
            returns ``(y, all)``; ``past`` is of ``(b, h, p, d)``
    After:  ``main(x, past, held): written = call_tir_inplace(append, past, new)``, then
            ``y = attention(q, written, v, keys=p + s)``, which returns ``y``; ``past`` is of
            ``(b, h, capacity, d)`` and ``held`` of ``(p, 0)``

    ``states`` has the positions of the input and the output and the axis of each pair; without any
    the pass does nothing. ``model.session()`` names the pairs of a model.

    Leaves alone: other targets than CPUs; an input with another reader than one concatenation with
    new rows behind it, whose result is the output; what grows by another size than the first pair.
    What reads the rows and is no attention gets a copy of them.

    Run after: AttentionFusion, FuseHeadsIntoAttention, LayoutPlanning. Run before: LegalizeOps.
    """

    states: tuple[tuple[int, int, int], ...] = ()

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when no state is kept in place."""
        if not self.states or current_cpu() is None or StateInPlace.of(mod) is not None:
            return mod
        # Without other names for values, of which one might be read behind its own end.
        plain = relax.transform.CanonicalizeBindings()(mod)
        found = _appended(plain, self.states)
        return _Writer(plain, plain["main"], found).module() if found else mod


@dataclass(frozen=True)
class _Appended:
    """A state that one concatenation appends new rows to.

    Attributes
    ----------
    place, output : int
        Positions of the input and of the output.
    axis : int
        Along which it grows.
    result : relax.Var
        The old rows and the new ones.
    rows : relax.Expr
        The new ones.
    starts : relax.Expr or None
        The row of each sequence that the first new one is; None where it is the same for all.
    """

    place: int
    output: int
    axis: int
    result: relax.Var
    rows: relax.Expr
    starts: relax.Expr | None = None


def _appended(mod: tvm.IRModule, states: Sequence[tuple[int, int, int]]) -> dict[int, _Appended]:
    """The states that can be kept in place, by the hash of the variable of all rows."""
    main = mod["main"]
    view = GraphView(main)
    found: dict[int, _Appended] = {}
    held: tirx.Expr | None = None
    for place, output, axis in states:
        param = main.params[place]
        try:
            one = _one_appended(mod, view, place, output, axis)
            size = param.ty.shape.values[axis]
            if held is not None and not size.same_as(held):
                raise NotApplicable("it grows along another size than the states ahead of it")
        except NotApplicable as reason:
            record_refusal("KeepStateInPlace", str(param.name), reason.reason)
            continue
        held = size
        found[hash(one.result)] = one
    return found


def _one_appended(
    mod: tvm.IRModule, view: GraphView, place: int, output: int, axis: int
) -> _Appended:
    """One state; raises NotApplicable with what is in the way."""
    main = mod["main"]
    param = main.params[place]
    result = view.value(main.body.body)
    if not isinstance(result, relax.Tuple):
        raise NotApplicable("the model has one output only")
    field = _resolved(view, result.fields[output])
    along, (old, rows, *starts) = _appending_step(mod, view, field)
    if along % param.ty.ndim != axis:
        raise NotApplicable("its output is a concatenation along another axis")
    if not _resolved(view, old).same_as(param):
        raise NotApplicable("its output begins with something else")
    if view.uses(param) != 1:
        raise NotApplicable("something else than the concatenation reads it")
    if not isinstance(param.ty.shape.values[axis], tirx.Var):
        raise NotApplicable("its size is not one that a run decides")
    return _Appended(place, output, axis, field, rows, *starts)


def _appending_step(
    mod: tvm.IRModule, view: GraphView, field: relax.Expr
) -> tuple[int, Sequence[relax.Expr]]:
    """The axis of what appends rows, and the old rows, the new ones and perhaps where they start.

    That is a concatenation of two, or a function that appends rows by sequence.
    """
    call = view.value(field)
    if isinstance(call, relax.Call) and _CALL_TIR.same_as(call.op):
        attributes = mod[call.args[0]].attrs or {}
        if APPENDS_BY_SEQUENCE in attributes:
            return int(attributes[APPENDS_BY_SEQUENCE]), call.args[1].fields
    call = view.call(field, "relax.concat")
    fields = None if call is None else view.value(call.args[0])
    if call is None or not isinstance(fields, relax.Tuple) or len(fields.fields) != 2:
        raise NotApplicable("its output is not a concatenation of it with new rows")
    return int(call.attrs.axis), fields.fields


def _resolved(view: GraphView, expr: relax.Expr) -> relax.Expr:
    """The variable that ``expr`` is another name of."""
    known = view.bindings()
    while isinstance(expr, relax.Var) and isinstance(known.get(expr), relax.Var):
        expr = known[expr]
    return expr


class _Writer:
    """Writes ``main`` with buffers in the place of the states."""

    def __init__(self, mod: tvm.IRModule, main: relax.Function, found: dict[int, _Appended]):
        self._builder = relax.BlockBuilder(mod)
        self._mod, self._main, self._found = mod, main, found
        first = next(iter(found.values()))
        self._held = main.params[first.place].ty.shape.values[first.axis]
        self._capacity = tirx.Var(CAPACITY, "int64")
        self._buffers = {one.place: self._buffer(one) for one in found.values()}
        # Other names of the result with all outputs, which nothing else reads.
        self._former = _names_of_result(main)
        # By the hash of the variable of all rows: the buffer after the new ones are written.
        self._written: dict[int, relax.Var] = {}
        self._view = GraphView(main)
        outputs = list(self._view.value(main.body.body).fields)
        gone = {one.output for one in found.values()}
        self._kept = [field for place, field in enumerate(outputs) if place not in gone]
        self._result = _one_or_tuple(self._kept)
        if isinstance(main.body.body, relax.Var):
            self._result = relax.Var("result", self._result.ty)
        self._copied: list[int] = []

    def module(self) -> tvm.IRModule:
        """The module with the new ``main``."""
        blocks = [
            type(block)([new for binding in block.bindings for new in self._rewritten(binding)])
            for block in self._main.body.blocks[:]
        ]
        held = relax.Var(HELD, relax.TensorType([self._held, 0], "int8"))
        own = [self._buffers.get(n, param) for n, param in enumerate(self._main.params)]
        state = StateInPlace(
            [[one.place, one.axis] for one in self._found.values()],
            [one.output for one in self._found.values()],
            self._copied,
        )
        attrs = dict(self._main.attrs.items()) if self._main.attrs else {}
        body = relax.SeqExpr(blocks, self._result)
        main = relax.Function([*own, held], body, self._result.ty, self._main.is_pure)
        main = main.with_attrs({**attrs, STATE_ATTRIBUTE: json.dumps(state.__dict__)})
        self._builder.update_func(self._mod.get_global_var("main"), main)
        return relax.transform.Normalize()(self._builder.finalize())

    def _buffer(self, one: _Appended) -> relax.Var:
        param = self._main.params[one.place]
        shape = list(param.ty.shape.values)
        shape[one.axis] = self._capacity
        return relax.Var(param.name, relax.TensorType(shape, param.ty.dtype))

    def _rewritten(self, binding: relax.Binding) -> list[relax.Binding]:
        one = self._found.get(hash(binding.var))
        if one is not None:
            return self._appending(binding, one)
        if hash(binding.var) in self._former:
            return []
        if binding.var.same_as(self._main.body.body):
            return [relax.VarBinding(self._result, _one_or_tuple(self._kept))]
        reading = self._attention(binding)
        return [binding] if reading is None else [reading]

    def _appending(self, binding: relax.Binding, one: _Appended) -> list[relax.Binding]:
        """The new rows written and, for what is no attention, a slice with all of them."""
        buffer = self._buffers[one.place]
        by_sequence = one.starts is not None
        func = append_rows(buffer.ty.shape.values, one.rows.ty, one.axis, by_sequence=by_sequence)
        kernel = self._builder.add_func(func, "append_rows")
        start = self._held if one.starts is None else one.starts
        arguments = relax.Tuple([buffer, one.rows, start])
        call = relax.op.call_tir_inplace(kernel, arguments, 0, buffer.ty)
        written = _like(binding.var, "written", buffer.ty)
        self._written[hash(binding.var)] = written
        found: list[relax.Binding] = [relax.VarBinding(written, call)]
        name = str(self._main.params[one.place].name)
        # The output is one of the readers.
        if self._view.uses(binding.var) == self._read_by_attention(binding.var) + 1:
            record_applied("KeepStateInPlace", name, f"rows appended along axis {one.axis}")
            return found
        record_applied("KeepStateInPlace", name, f"rows appended along axis {one.axis}, copied")
        self._copied.append(one.place)
        slicing = first_rows(buffer.ty.shape.values, binding.var.ty)
        slicer = self._builder.add_func(slicing, "first_rows")
        rows = relax.call_tir(slicer, relax.Tuple([written]), binding.var.ty)
        return [*found, relax.VarBinding(binding.var, rows)]

    def _read_by_attention(self, rows: relax.Var) -> int:
        """How many readers are attention that can read a buffer with room."""
        found = 0
        for binding in bindings_of(self._main):
            call = self._attention_call(binding)
            if call is not None:
                found += sum(argument.same_as(rows) for argument in call.args[1].fields[1:3])
        return found

    def _attention_call(self, binding: relax.Binding) -> relax.Call | None:
        """A call of attention whose keys and values are both states."""
        call = binding.value
        if not isinstance(call, relax.Call) or not _CALL_TIR.same_as(call.op):
            return None
        attributes = self._mod[call.args[0]].attrs or {}
        if ATTRIBUTE not in attributes:
            return None
        states = [self._found.get(hash(one)) for one in call.args[1].fields[1:3]]
        if any(one is None for one in states):
            return None
        return call if not self._held_function(call)[1] else None

    def _held_function(self, call: relax.Call) -> tuple[tirx.PrimFunc, str]:
        """The attention of a call with buffers for keys and values; why there is no kernel."""
        attribute = self._mod[call.args[0]].attrs[ATTRIBUTE]
        compute = replace(AttentionCompute.from_attribute(str(attribute)), held=True)
        arguments = list(call.args[1].fields)
        shapes = [list(argument.ty.shape.values) for argument in arguments]
        for place in (1, 2):
            buffer = self._buffers[self._found[hash(arguments[place])].place]
            shapes[place] = list(buffer.ty.shape.values)
        dtypes = [str(argument.ty.dtype) for argument in arguments]
        func = attention_function(compute, shapes, dtypes)
        machine = current_cpu()
        return func, "" if machine is None else refusal(func, machine)

    def _attention(self, binding: relax.Binding) -> relax.Binding | None:
        """The binding of an attention that reads the buffers; None for others."""
        call = self._attention_call(binding)
        if call is None:
            return None
        func, _ = self._held_function(call)
        arguments = list(call.args[1].fields)
        one = self._found[hash(arguments[1])]
        keys = arguments[1].ty.shape.values[one.axis]
        arguments[1:3] = [self._written[hash(argument)] for argument in arguments[1:3]]
        kernel = self._builder.add_func(func, "attention")
        made = relax.call_tir(kernel, relax.Tuple([*arguments, keys]), call.ty_args[0])
        return relax.VarBinding(binding.var, made)


_CALL_TIR = tvm.ir.Op.get("relax.call_tir")


def _names_of_result(main: relax.Function) -> set[int]:
    """The hashes of the variables that the result is another name of."""
    values = {hash(binding.var): binding.value for binding in bindings_of(main)}
    found: set[int] = set()
    expr = values.get(hash(main.body.body))
    while isinstance(expr, relax.Var) and hash(expr) in values:
        found.add(hash(expr))
        expr = values[hash(expr)]
    return found


def _one_or_tuple(fields: Sequence[relax.Expr]) -> relax.Expr:
    """What a function with these outputs returns."""
    if len(fields) == 1:
        return fields[0]
    several = relax.Tuple(list(fields))
    several = relax.BlockBuilder().normalize(several)
    return several


def _like(var: relax.Var, name: str, ty: tvm.ir.Type) -> relax.Var:
    """A new variable of the same block, with the same origin."""
    return type(var)(name, ty, var.span)


def append_rows(
    shape: Sequence[tirx.Expr], rows: Any, axis: int, *, by_sequence: bool = False
) -> tirx.PrimFunc:
    """The kernel that writes ``rows`` into a buffer behind those that it holds.

    Its parameters are the buffer, the rows, and how many rows the buffer holds: one number, or a
    tensor with one for each sequence. What is beyond the buffer's end is not written.
    """
    sizes, dtype = _Sizes(), str(rows.dtype)
    whole = tirx.decl_buffer(sizes.of(shape), dtype, "buffer")
    new = tirx.decl_buffer(sizes.of(rows.shape.values), dtype, "rows")
    views = FlatViews(symbolic_sizes=True)
    held: Any = tirx.Var("held", "int64")
    if by_sequence:
        held = tirx.decl_buffer([whole.shape[0]], "int64", "held")
    within = _product(new.shape[1:axis])

    def first(place: Any) -> Any:
        if not by_sequence:
            return held
        return tirx.BufferLoad(views.of(held), [tirx.floordiv(place, within)])

    code = _append_code(views, whole, new, first, axis)
    func = tirx.PrimFunc([whole, new, held], code)
    func = func.with_body(sequence([*views.declarations(func), code]))
    return func.with_attrs({"op_pattern": OPAQUE, "tirx.noalias": True})


def first_rows(shape: Sequence[tirx.Expr], rows: Any) -> tirx.PrimFunc:
    """The kernel that copies as many rows of a buffer as ``rows`` have.

    Consumers take it in where the number of rows is one size of the run. A sum of sizes that only a
    result has fails in FuseTIR, and the whole program would be left without fusion.
    """
    sizes = _Sizes()
    buffer = te.placeholder(sizes.of(shape), str(rows.dtype), "buffer")
    copied = te.compute(
        sizes.of(rows.shape.values), lambda *place: buffer(*place), "first_rows", tag="injective"
    )
    func = te.create_prim_func([buffer, copied]).without_attr("global_symbol")
    is_plain = all(isinstance(n, tirx.Var | tirx.IntImm) for n in rows.shape.values)
    return func.with_attr("op_pattern", INJECTIVE if is_plain else OPAQUE)


class _Sizes:
    """Sizes of a kernel's own for those of its tensors, the same one for the same size."""

    def __init__(self) -> None:
        self._known: dict[Any, tirx.Var] = {}

    def of(self, shape: Sequence[tirx.Expr]) -> list[tirx.Expr]:
        """The shape in the kernel's sizes."""
        return [self._own(extent) for extent in shape]

    def _own(self, extent: tirx.Expr) -> tirx.Expr:
        if isinstance(extent, tirx.IntImm):
            return extent
        fresh = tirx.Var(f"n{len(self._known)}", "int64")
        return self._known.setdefault(tvm_ffi.StructuralKey(extent), fresh)


def _append_code(
    views: FlatViews, whole: Any, new: Any, first: Callable[[Any], Any], axis: int
) -> tirx.Stmt:
    """Runs of neighbours, one for each row and each place on the axes ahead of it.

    ``first`` gives the row of such a place that the first new one is.
    """
    target, source = views.of(whole), views.of(new)
    capacity, count = (_extent(n) for n in (whole.shape[axis], new.shape[axis]))
    outer = _product(new.shape[:axis])
    inner = _product(new.shape[axis + 1 :])

    def row(place: Any, one: Any) -> tirx.Stmt:
        start = (place * capacity + first(place) + one) * inner
        begin = (place * count + one) * inner

        def store(n: Any) -> tirx.Stmt:
            return tirx.BufferStore(target, tirx.BufferLoad(source, [begin + n]), [start + n])

        return loop(inner, store)

    # A row beyond the end would be another tensor's memory.
    def room(place: Any) -> Any:
        return tirx.min(count, capacity - first(place))

    return loop(outer, lambda place: loop(room(place), lambda one: row(place, one)))


def _product(extents: Sequence[Any]) -> Any:
    return math.prod([_extent(n) for n in extents], start=number(1))


def _extent(size: Any) -> Any:
    """A size as a number of 64 bits."""
    known = static_extent(size)
    return size.astype("int64") if known is None else number(known)
