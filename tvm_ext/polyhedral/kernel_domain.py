"""Reads the statements of a kernel, with their iteration domains and access relations.

Blocks are read through: their iteration variables stand for expressions of loops. What is not
affine is kept as "may": a condition that is unknown may hold, an index that is unknown may be any,
and the reason is noted.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import islpy as isl
import tvm
from tvm import s_tir, tirx
from tvm_ffi import structural_map

from tvm_ext.polyhedral.affine_expressions import AffineReader, Element, NotAffine, element_of
from tvm_ext.polyhedral.array_layouts import Layout, Layouts, NotedAccess
from tvm_ext.polyhedral.array_views import address_in, behind, views_in
from tvm_ext.polyhedral.iteration_domains import Access, KernelDomain, LocalArray, Statement
from tvm_ext.polyhedral.symbolic_sizes import Parameters, SampledSizes
from tvm_ext.polyhedral.uninterpreted_values import UninterpretedValues
from tvm_ext.tir_schedules.analysis.buffer_access import (
    is_conditional,
    nodes,
    static_extent,
)


def kernel_domain(
    func: tirx.PrimFunc,
    sizes: SampledSizes | None = None,
    layouts: Mapping[str, Layout] | None = None,
    values: UninterpretedValues | None = None,
) -> KernelDomain:
    """The statements of ``func``, whose domains and accesses are sets of isl.

    Parameters
    ----------
    sizes : SampledSizes or None
        Numbers for the symbolic sizes; without them these are parameters of the sets.
    layouts : mapping of str to Layout, or None
        Layouts of arrays that are taken as they are: indices need not be within an axis, and tiles
        that were moved back lie in a place of their own.
    values : UninterpretedValues or None
        What is not affine and gets a dimension of its own.

    Raises
    ------
    NotAffine
        The kernel holds a statement of which it is not known what it accesses: a call that gets an
        address, a loop that ends when the data say so.
    """
    parameters = Parameters(sizes=sizes, values=values or UninterpretedValues())
    found = KernelDomain(func, isl.Context(), parameters=parameters)
    for param in func.params:
        if not isinstance(param.ty, tvm.ir.PrimType):
            found.parameters.note_shape(param.shape)
    reader = _Reader(found)
    reader.read(func.body)
    chosen = Layouts(reader.noted, layouts)
    found.layouts, reasons = chosen.by_array, chosen.reasons
    found.not_affine += [one for one in dict.fromkeys(reasons) if one not in found.not_affine]
    if found.parameters.products:
        found.not_rewritable.append("a product of symbolic sizes is part of it")
    return found


class _Runs:
    """The iterations of loops for which conditions hold, found when they are first asked for.

    Attributes
    ----------
    reader : AffineReader
        Reads expressions there.
    domain : isl.Set
        The iterations, as far as they are known.
    unread : list[str]
        What of the loops and conditions is not affine.
    """

    def __init__(self, space: isl.Space, parameters: Parameters) -> None:
        self._parameters = parameters
        self._outer: tuple[_Runs, _Around, Any, Any] | None = None
        self.unread: list[str] = []
        self.reader = AffineReader(space, {}, {}, parameters)
        self.domain = isl.Set.universe(space)

    def inside(self, around: "_Around", loop: Any = None, condition: Any = None) -> "_Runs":
        """These in one more loop, or under one more condition."""
        found = _Runs.__new__(_Runs)
        found._parameters, found._outer = self._parameters, (self, around, loop, condition)
        return found

    def __getattr__(self, name: str) -> Any:
        # Of loops without a statement that counts, nobody asks.
        if name not in ("reader", "domain", "unread") or self._outer is None:
            raise AttributeError(name)
        self._find(*self._outer)
        return getattr(self, name)

    def _find(self, outer: "_Runs", around: "_Around", loop: Any, condition: Any) -> None:
        self.reader = outer.reader.inside(loop, around.bound, around.stored)
        known = outer.domain
        if loop is not None:
            place = len(around.loops)
            known = known.insert_dims(isl.dim_type.set, place, 1)
            known = known.set_dim_name(isl.dim_type.set, place, f"c{place}")
        self.reader.within(self._parameters.possible(known))
        self.domain, unread = self._step(known, loop, condition)
        if loop is None or unread:
            # With what is known of one part of a condition, the other is understood.
            self.reader.within(self._parameters.possible(self.domain))
            self.domain, unread = self._step(known, loop, condition)
        self.unread = [*outer.unread, *unread]

    def _step(self, known: isl.Set, loop: Any, condition: Any) -> tuple[isl.Set, list[str]]:
        reader = self.reader
        try:
            if loop is None:
                return known.intersect(reader.condition(condition)), []
            variable, low = reader.value(loop.loop_var), reader.value(loop.min)
            known = known.intersect(variable.ge_set(low))
            high = low.add(reader.value(loop.extent))
            return known.intersect(variable.lt_set(high)), []
        except NotAffine as error:
            if loop is None:
                return known, [error.reason]
            return known, [f"the bounds of loop {loop.loop_var.name}: {error.reason}"]


@dataclass(frozen=True)
class _Around:
    """What is around a statement: its runs, loops, conditions, bound names, integers that were
    stored before, and positions so far."""

    runs: _Runs
    loops: tuple[Any, ...] = ()
    conditions: tuple[Any, ...] = ()
    bound: Mapping[int, Any] = field(default_factory=dict)
    stored: Mapping[Element, Any] = field(default_factory=dict)
    position: tuple[int, ...] = ()

    def where(self, condition: Any) -> "_Around":
        """These under one more condition."""
        runs = self.runs.inside(self, condition=condition)
        return replace(self, runs=runs, conditions=(*self.conditions, condition))


class _Reader:
    def __init__(self, found: KernelDomain) -> None:
        self._found = found
        self._arrays: dict[int, tuple[str, tuple[Any, ...]]] = {}
        self._regions: dict[int, Any] = {}
        self._views = views_in(found.func.body)
        # Arrays that are seen as flat ones somewhere are flat everywhere.
        self._flat = {
            hash(self._whole(view.base)) for view in self._views.values() if not view.is_part
        }
        self.noted: list[NotedAccess] = []
        self._counts: list[int] = [0]
        self._final = _stored_once(found.func)
        for param in found.func.params:
            if not isinstance(param.ty, tvm.ir.PrimType):
                self._add_array(param, ())

    def read(self, stmt: Any) -> None:
        """Notes all statements below ``stmt``."""
        space = isl.Space.create_from_names(self._found.context, set=self._found.dimensions(()))
        self._visit(stmt, _Around(_Runs(space, self._found.parameters)))

    def _visit(self, stmt: Any, around: _Around) -> _Around:
        """Notes what is below ``stmt``; returns what is around what follows it."""
        known: dict[type, Callable[..., None]] = {
            tirx.For: self._loop,
            tirx.BufferStore: self._store,
            tirx.IfThenElse: self._branches,
            s_tir.SBlockRealize: self._block,
        }
        read = known.get(type(stmt))
        if read is not None:
            read(stmt, around)
            element = element_of(stmt) if isinstance(stmt, tirx.BufferStore) else None
            if element in self._final:
                return replace(around, stored={**around.stored, element: stmt.value})
        elif isinstance(stmt, tirx.SeqStmt):
            inner = around
            for part in stmt.seq:
                inner = self._visit(part, inner)
        elif isinstance(stmt, tirx.Bind):
            if nodes(stmt.value, tvm.ir.TensorLoad):
                self.keep(f"{stmt.var.name} is loaded before it is used")
            return replace(around, bound={**around.bound, hash(stmt.var): stmt.value})
        elif isinstance(stmt, tirx.AllocBuffer):
            self._add_array(stmt.buffer, around.loops)
        elif isinstance(stmt, tirx.AttrStmt):
            self.keep(f"the attribute {stmt.attr_key} holds for a part of it")
            self._visit(stmt.body, around)
        else:
            self._other(stmt, around)
        return around

    def _other(self, stmt: Any, around: _Around) -> None:
        """Notes a statement that declares a view or stores under a mask; any other is refused."""
        if isinstance(stmt, tirx.DeclBuffer) and hash(stmt.buffer) in self._views:
            self.keep(f"{stmt.buffer.name} is a view of another array")
        elif _is_masked(stmt, "masked_store"):
            self._masked_store(stmt.value, around)
        elif not _does_nothing(stmt):
            raise NotAffine(f"what a statement of kind {_kind(stmt)} accesses is not known")

    def _masked_store(self, call: tvm.ir.Call, around: _Around) -> None:
        """Notes a store under a mask as a loop over its lanes, each of them under a condition."""
        buffer, value, *indices, mask = call.args
        self.keep(f"{buffer.name} is stored under a mask")
        lanes = {static_extent(one.lanes) for index in indices for one in nodes(index, tirx.Ramp)}
        count = next(iter(lanes), None) if len(lanes) == 1 else None
        if count is None or any(
            _is_masked(one, "masked_load") for one in nodes(value, tvm.ir.Call)
        ):
            self._store(tirx.BufferStore(buffer, value, indices), around, is_masked=True)
            return
        lane = tirx.Var("lane", "int64")
        # Of the value, only what it loads counts.
        loads = [
            tirx.BufferLoad(load.source, [_of_lane(index, lane) for index in load.indices])
            for load in nodes(value, tvm.ir.TensorLoad)
        ]
        loaded = [tirx.Cast(str(buffer.dtype), load) for load in loads]
        whole = sum(loaded[1:], loaded[0]) if loaded else tirx.const(0, str(buffer.dtype))
        store = tirx.BufferStore(buffer, whole, [_of_lane(index, lane) for index in indices])
        body = tirx.IfThenElse(_of_lane(mask, lane), store, None)
        self._visit(tirx.For(lane, 0, count, tirx.ForKind.SERIAL, body), around)

    def keep(self, reason: str) -> None:
        """Notes once why the statements cannot be written anew."""
        if reason not in self._found.not_rewritable:
            self._found.not_rewritable.append(reason)

    def _loop(self, loop: tirx.For, around: _Around) -> None:
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            self.keep(f"loop {loop.loop_var.name} is bound to threads")
        if loop.step is not None and not _is_one(loop.step):
            raise NotAffine(f"loop {loop.loop_var.name} has steps of {loop.step}")
        place = self._next_position()
        self._counts.append(0)
        inner = replace(
            around,
            runs=around.runs.inside(around, loop=loop),
            loops=(*around.loops, loop),
            position=(*around.position, place),
        )
        self._visit(loop.body, inner)
        self._counts.pop()

    def _next_position(self) -> int:
        self._counts[-1] += 1
        return self._counts[-1] - 1

    def _branches(self, stmt: tirx.IfThenElse, around: _Around) -> None:
        self._visit(stmt.then_case, around.where(stmt.condition))
        if stmt.else_case is not None:
            self._visit(stmt.else_case, around.where(tirx.Not(stmt.condition)))

    def _block(self, realize: Any, around: _Around) -> None:
        block = realize.block
        bound = dict(around.bound)
        for variable, value in zip(block.iter_vars, realize.iter_values, strict=True):
            bound[hash(variable.var)] = value
        inner = replace(around, bound=bound)
        if not isinstance(realize.predicate, tirx.IntImm):
            inner = inner.where(realize.predicate)
        for buffer in block.alloc_buffers:
            self._add_array(buffer, around.loops)
        for match in block.match_buffers:
            self.keep(f"{match.buffer.name} is a part of {match.source.source.name}")
            self._regions[hash(match.buffer)] = match.source
        if block.init is not None:
            first = [
                tirx.EQ(variable.var, variable.dom.min)
                for variable in block.iter_vars
                if variable.iter_type == tirx.IterVar.CommReduce
            ]
            before = inner
            for condition in first:
                before = before.where(condition)
            self._visit(block.init, before)
        self._visit(block.body, inner)

    def _add_array(self, buffer: Any, loops: tuple[Any, ...]) -> None:
        taken = {name for name, _ in self._arrays.values()}
        name = "".join(c if c.isalnum() else "_" for c in str(buffer.name))
        while name in taken:
            name += "_"
        self._arrays[hash(buffer)] = (name, loops)
        if not any(buffer.same_as(param) for param in self._found.func.params):
            self._found.local_arrays.append(LocalArray(buffer, name, loops))

    def _store(self, store: tirx.BufferStore, around: _Around, is_masked: bool = False) -> None:
        name = f"S{len(self._found.statements)}"
        runs = around.runs
        reader = runs.reader.inside(None, around.bound, around.stored)
        domain = self._found.parameters.possible(runs.domain)
        reader.within(domain)
        for reason in runs.unread:
            self.note(reason)
        exact = not runs.unread
        if not exact:
            self.keep("it is not known when a statement runs")
        accesses = _Accesses(self, reader, domain, around, name)
        for condition in around.conditions:
            accesses.reads(condition, domain)
        for index in store.indices:
            accesses.reads(index, domain)
        accesses.reads(store.value, domain)
        accesses.access(store.buffer, store.indices, domain, writes=True, exact=not is_masked)
        self._found.statements.append(
            Statement(
                name,
                _with_bound(store, around.bound),
                around.loops,
                (*around.position, self._next_position()),
                domain.set_tuple_name(name),
                exact,
                tuple(accesses.found),
            )
        )

    def note(self, reason: str) -> None:
        """Notes once what is not affine."""
        if reason not in self._found.not_affine:
            self._found.not_affine.append(reason)

    def array(self, buffer: Any, indices: Any) -> tuple[Any, list[Any]]:
        """The array that an element lies in, and its indices there: through regions and views.

        One index, the address, where the array is seen as a flat one somewhere.
        """
        indices = list(indices)
        region = self._regions.get(hash(buffer))
        while region is not None:
            ranges = list(region.region)
            skipped = len(ranges) - len(indices)
            if skipped < 0 or any(not _is_one(one.extent) for one in ranges[:skipped]):
                raise NotAffine(f"{buffer.name} is part of {region.source.name} of another rank")
            starts = [one.min for one in ranges]
            indices = [0] * skipped + indices
            indices = [start + index for start, index in zip(starts, indices, strict=True)]
            buffer = region.source
            region = self._regions.get(hash(buffer))
        buffer, indices = self._in_whole(buffer, indices)
        if hash(buffer) not in self._arrays:
            raise NotAffine(f"which memory {buffer.name} lies in is not known")
        return buffer, indices

    def named(self, buffer: Any) -> tuple[str, tuple[Any, ...]]:
        """The name of an array, and the loops around its allocation."""
        return self._arrays[hash(buffer)]

    def _whole(self, buffer: Any) -> Any:
        """The array that ``buffer`` is a view of, through views of views."""
        while hash(buffer) in self._views:
            buffer = self._views[hash(buffer)].base
        return buffer

    def _in_whole(self, buffer: Any, indices: list[Any]) -> tuple[Any, list[Any]]:
        """The array behind views, and the indices there: one address if it is seen as flat."""
        is_flat = hash(self._whole(buffer)) in self._flat
        if is_flat:
            indices = [address_in(buffer, indices)]
        while hash(buffer) in self._views:
            view = self._views[hash(buffer)]
            starts = [address_in(view.base, view.start)] if is_flat else view.start
            indices = [behind(start, index) for start, index in zip(starts, indices, strict=True)]
            buffer = view.base
        return buffer, indices


class _Accesses:
    """The accesses of one statement."""

    def __init__(
        self,
        owner: _Reader,
        reader: AffineReader,
        domain: isl.Set,
        around: _Around,
        statement: str,
    ) -> None:
        self.found: list[Access] = []
        self._owner = owner
        self._reader = reader
        self._domain = domain
        self._around = around
        self._statement = statement

    def reads(self, expr: Any, where: isl.Set, exact: bool = True) -> None:
        """Notes what ``expr`` loads in the iterations ``where``."""
        if isinstance(expr, tvm.ir.TensorLoad):
            self.access(expr.source, expr.indices, where, writes=False, exact=exact)
            for index in expr.indices:
                self.reads(index, where, exact)
        elif is_conditional(expr):
            self._branch_reads(expr, where, exact)
        elif _is_masked(expr, "masked_load"):
            self._owner.keep(f"{expr.args[0].name} is loaded under a mask")
            self.access(expr.args[0], expr.args[1:-1], where, writes=False, exact=False)
        elif _changes_state(expr):
            raise NotAffine(f"what a call of {expr.op.name} accesses is not known")
        elif isinstance(expr, tvm.ir.Var):
            if hash(expr) in self._around.bound:
                self.reads(self._around.bound[hash(expr)], where, exact)
            elif not isinstance(expr.ty, tvm.ir.PrimType):
                raise NotAffine(f"a call gets the address of {expr.name}")
        else:
            for child in _children(expr):
                self.reads(child, where, exact)

    def _branch_reads(self, expr: tvm.ir.Call, where: isl.Set, exact: bool) -> None:
        self.reads(expr.args[0], where, exact)
        try:
            holds = self._reader.condition(expr.args[0])
        except NotAffine as error:
            self._owner.note(error.reason)
            self.reads(expr.args[1], where, False)
            self.reads(expr.args[2], where, False)
            return
        self.reads(expr.args[1], where.intersect(holds), exact)
        self.reads(expr.args[2], where.subtract(holds), exact)

    def access(
        self, buffer: Any, indices: Any, where: isl.Set, *, writes: bool, exact: bool = True
    ) -> None:
        """Notes the access of one element."""
        text = f"{buffer.name}[{', '.join(str(index) for index in indices)}]"
        whole, indices = self._owner.array(buffer, indices)
        name, loops = self._owner.named(whole)
        copies = [loop.loop_var for loop in loops]
        own = (self._reader, where, writes, exact)
        one = NotedAccess(self._statement, name, whole, copies, indices, *own)
        self._owner.noted.append(one)
        self.found.append(Access(name, writes, text, one))


def _stored_once(func: tirx.PrimFunc) -> set[Element]:
    """Elements of a kernel's own arrays of integers that one statement stores, and no other.

    What is loaded behind that statement, in the loops around it, is what it stored.
    """
    stores = [
        (hash(store.buffer), element_of(store))
        for store in nodes(func.body, tirx.BufferStore)
        if "int" in str(store.buffer.dtype) or str(store.buffer.dtype) == "bool"
    ]
    unknown = {buffer for buffer, element in stores if element is None}
    unknown |= {hash(param) for param in func.params}
    for view in views_in(func.body).items():
        unknown |= {view[0], hash(view[1].base)}
    for call in nodes(func.body, tirx.Evaluate):
        if _is_masked(call, "masked_store"):
            unknown.add(hash(call.value.args[0]))
    counts = Counter(element for _, element in stores if element is not None)
    return {one for one, count in counts.items() if count == 1 and one[0] not in unknown}


def _children(expr: Any) -> Iterator[Any]:
    """The expressions right below one that neither loads nor branches."""
    if isinstance(expr, tvm.ir.Call):
        yield from expr.args
        return
    for name in _CHILDREN:
        child = getattr(expr, name, None)
        if child is not None and isinstance(child, tvm.ir.Expr):
            yield child
    vectors = getattr(expr, "vectors", None)
    if vectors is not None:
        yield from vectors


_CHILDREN = ("a", "b", "value", "condition", "true_value", "false_value", "base", "stride", "body")


def _with_bound(store: Any, bound: Mapping[int, Any]) -> Any:
    """``store`` with what bound names stand for, over the variables of loops."""
    if not bound:
        return store

    def replaced(var: Any) -> Any:
        value = bound.get(hash(var))
        return var if value is None else structural_map(value, (tvm.ir.Var, replaced))

    return structural_map(store, (tvm.ir.Var, replaced))


def _of_lane(expr: Any, lane: tirx.Var) -> Any:
    """What one lane of a vector has."""

    def one_of(ramp: tirx.Ramp) -> Any:
        return ramp.base + ramp.stride * lane.astype(str(ramp.base.ty))

    kinds = ((tirx.Ramp, one_of), (tirx.Broadcast, lambda same: same.value))
    return structural_map(expr, kinds)


def _is_masked(node: Any, name: str) -> bool:
    call = node.value if isinstance(node, tirx.Evaluate) else node
    return isinstance(call, tvm.ir.Call) and str(getattr(call.op, "name", "")).endswith(name)


def _changes_state(expr: Any) -> bool:
    """Whether an expression is a call that does more than to compute a value."""
    if not isinstance(expr, tvm.ir.Call) or not isinstance(expr.op, tvm.ir.Op):
        return isinstance(expr, tvm.ir.Call)
    effect = expr.op.get_attr("TCallEffectKind")
    return effect is not None and int(effect) > _PURE


# TVM's number (``CallEffectKind``) for calls that only compute a value; larger ones do more.
_PURE = 1


def _does_nothing(stmt: Any) -> bool:
    return isinstance(stmt, tirx.Evaluate) and not isinstance(stmt.value, tvm.ir.Call)


def _is_one(expr: Any) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr.value) == 1


def _kind(stmt: Any) -> str:
    if isinstance(stmt, tirx.Evaluate):
        return f"call of {getattr(stmt.value.op, 'name', 'a function')}"
    return type(stmt).__name__
