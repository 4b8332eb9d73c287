"""The iteration domains and access relations of a kernel's statements.

A statement is one store. Its domain has a point for each time that it runs, its access relations
say which elements that run reads and writes, and its position says where it stands among the
loops. Blocks are read through: their iteration variables stand for expressions of loops. What is
not affine is kept as "may": a condition that is unknown may hold, an index that is unknown may be
any, and the reason is noted.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import islpy as isl
import tvm
from tvm import s_tir, tirx
from tvm_ffi import structural_equal, structural_map

from tvm_ext.polyhedral.affine_expressions import (
    AffineReader,
    Element,
    NotAffine,
    Parameters,
    SampledSizes,
    element_of,
)
from tvm_ext.polyhedral.array_layouts import Layout, Layouts, NotedAccess
from tvm_ext.tir_schedules.analysis.buffer_access import (
    flat_address,
    is_compact,
    is_conditional,
    nodes,
    static_extent,
)
from tvm_ext.tir_schedules.statements import buffer_data_operator


@dataclass(frozen=True)
class Access:
    """One array that a statement reads or writes.

    Attributes
    ----------
    buffer : str
        The array's name in the relations, unique in the kernel.
    is_write : bool
        Whether the element is written.
    text : str
        The access as the kernel has it.
    noted : NotedAccess
        Its indices, of which the relation is made.
    """

    buffer: str
    is_write: bool
    text: str
    noted: NotedAccess

    @cached_property
    def _found(self) -> tuple[isl.Map, bool]:
        # Of what is only read, nobody may ask.
        return self.noted.placed()

    @property
    def relation(self) -> isl.Map:
        """From the statement's runs to the elements.

        An array that is allocated within loops has one copy for each iteration of these, so the
        first indices are those loops.
        """
        return self._found[0]

    @property
    def is_exact(self) -> bool:
        """Whether every element of the relation is accessed; if not, it may be."""
        return self._found[1]


@dataclass(frozen=True)
class Statement:
    """One store of a kernel.

    Attributes
    ----------
    name : str
        Its name in the sets: "S0" for the first.
    store : tirx.BufferStore
        The store, over the variables of the loops.
    loops : tuple[tirx.For, ...]
        The loops around it, outermost first.
    position : tuple[int, ...]
        Where it stands: its number among what each loop holds, the outermost level first.
    domain : isl.Set
        Its runs.
    is_exact : bool
        Whether it runs for every point of the domain; if not, it may.
    accesses : tuple[Access, ...]
        What it reads and writes.
    """

    name: str
    store: Any
    loops: tuple[Any, ...]
    position: tuple[int, ...]
    domain: isl.Set
    is_exact: bool
    accesses: tuple[Access, ...]

    @cached_property
    def text(self) -> str:
        """The store as the kernel has it, in one line."""
        indices = ", ".join(str(index) for index in self.store.indices)
        text = " ".join(f"{self.store.buffer.name}[{indices}] = {self.store.value}".split())
        return text if len(text) <= 70 else text[:67] + "..."

    @cached_property
    def loop_names(self) -> tuple[str, ...]:
        """The names of the loops' variables."""
        return tuple(str(loop.loop_var.name) for loop in self.loops)

    @cached_property
    def is_reduction(self) -> bool:
        """Whether the store combines its element with a value that does not depend on it."""
        return _combines(self.store)


@dataclass(frozen=True)
class LocalArray:
    """An array that a kernel allocates, and the loops around the allocation."""

    buffer: Any
    name: str
    loops: tuple[Any, ...]


@dataclass
class KernelDomain:
    """A kernel as isl sees it; ``kernel_domain`` makes it.

    Attributes
    ----------
    func : tirx.PrimFunc
        The kernel.
    statements : list[Statement]
        In program order.
    parameters : Parameters
        The symbolic sizes.
    local_arrays : list[LocalArray]
        What it allocates, in program order.
    not_affine : list[str]
        What was found that is not affine, and is kept as "may", one text each.
    not_rewritable : list[str]
        Why the statements cannot be written anew in another order, one text each: what a kernel
        says besides its stores would be lost, or a value is loaded before it is used.
    layouts : dict[str, Layout]
        Which axes of each array count as one; see ``Layout``.
    """

    func: tirx.PrimFunc
    context: isl.Context
    statements: list[Statement] = field(default_factory=list)
    parameters: Parameters = field(default_factory=Parameters)
    local_arrays: list[LocalArray] = field(default_factory=list)
    not_affine: list[str] = field(default_factory=list)
    not_rewritable: list[str] = field(default_factory=list)
    layouts: dict[str, "Layout"] = field(default_factory=dict)

    def statement(self, name: str) -> Statement:
        """The statement of that name."""
        return next(one for one in self.statements if one.name == name)

    @cached_property
    def domain(self) -> isl.UnionSet:
        """The runs of all statements."""
        found = isl.UnionSet.read_from_str(self.context, "{ }")
        for statement in self.statements:
            found = found.union(isl.UnionSet.from_set(statement.domain))
        return found

    @cached_property
    def depth(self) -> int:
        """How many loops are around the statement that has most."""
        return max((len(one.loops) for one in self.statements), default=0)

    @cached_property
    def schedule(self) -> isl.UnionMap:
        """When each run takes place: positions and loops in turn, compared from the left."""
        found = isl.UnionMap.read_from_str(self.context, "{ }")
        for one in self.statements:
            found = found.union(isl.UnionMap.from_map(self.placed(one, place_of(one))))
        return found

    def placed(self, statement: Statement, place: "Place") -> isl.Map:
        """The time that ``place`` gives to each run of ``statement``."""
        dims = ", ".join(f"c{number}" for number in range(len(statement.loops)))
        padding = ["0"] * (2 * self.depth + 1 - len(place))
        times = ", ".join([*place, *padding])
        text = f"{{ {statement.name}[{dims}] -> [{times}] }}"
        return isl.Map.read_from_str(self.context, text).intersect_domain(statement.domain)

    def accesses(self, *, writes: bool, exact: bool | None = None) -> isl.UnionMap:
        """All reads or all writes; ``exact``: only those that surely, or that only may, happen."""
        found = isl.UnionMap.read_from_str(self.context, "{ }")
        for statement in self.statements:
            for access in statement.accesses:
                sure = access.is_exact and statement.is_exact
                if access.is_write == writes and exact in (None, sure):
                    found = found.union(isl.UnionMap.from_map(access.relation))
        return found


Place = list[str]
"""The time of a statement's runs, each part an expression over its loops c0, c1, and so on."""


def place_of(statement: Statement) -> Place:
    """When the runs of a statement take place in the kernel as it is written."""
    place = [str(statement.position[0])]
    for number, position in enumerate(statement.position[1:]):
        place += [f"c{number}", str(position)]
    return place


def kernel_domain(
    func: tirx.PrimFunc,
    sizes: SampledSizes | None = None,
    layouts: Mapping[str, Layout] | None = None,
) -> KernelDomain:
    """The statements of ``func``, whose domains and accesses are sets of isl.

    Parameters
    ----------
    sizes : SampledSizes or None
        Numbers for the symbolic sizes; without them these are parameters of the sets.
    layouts : mapping of str to Layout, or None
        Layouts of arrays that are taken as they are: indices need not be within an axis, and tiles
        that were moved back lie in a place of their own.

    Raises
    ------
    NotAffine
        The kernel holds a statement of which it is not known what it accesses: a call that gets an
        address, a loop that ends when the data say so.
    """
    found = KernelDomain(func, isl.Context(), parameters=Parameters(sizes=sizes))
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


@dataclass(frozen=True)
class _Around:
    """What is around a statement: loops, conditions, bound names, integers that were stored before,
    and positions so far."""

    loops: tuple[Any, ...] = ()
    conditions: tuple[Any, ...] = ()
    bound: Mapping[int, Any] = field(default_factory=dict)
    stored: Mapping[Element, Any] = field(default_factory=dict)
    position: tuple[int, ...] = ()


class _Reader:
    def __init__(self, found: KernelDomain) -> None:
        self._found = found
        self._arrays: dict[int, tuple[str, tuple[Any, ...]]] = {}
        self._regions: dict[int, Any] = {}
        self._views = _views_in(found.func.body)
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
        self._visit(stmt, _Around())

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
        place = self._next_position()
        self._counts.append(0)
        inner = replace(around, loops=(*around.loops, loop), position=(*around.position, place))
        self._visit(loop.body, inner)
        self._counts.pop()

    def _next_position(self) -> int:
        self._counts[-1] += 1
        return self._counts[-1] - 1

    def _branches(self, stmt: tirx.IfThenElse, around: _Around) -> None:
        holds = replace(around, conditions=(*around.conditions, stmt.condition))
        self._visit(stmt.then_case, holds)
        if stmt.else_case is not None:
            fails = replace(around, conditions=(*around.conditions, tirx.Not(stmt.condition)))
            self._visit(stmt.else_case, fails)

    def _block(self, realize: Any, around: _Around) -> None:
        block = realize.block
        bound = dict(around.bound)
        for variable, value in zip(block.iter_vars, realize.iter_values, strict=True):
            bound[hash(variable.var)] = value
        conditions = around.conditions
        if not isinstance(realize.predicate, tirx.IntImm):
            conditions = (*conditions, realize.predicate)
        inner = replace(around, bound=bound, conditions=conditions)
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
            self._visit(block.init, replace(inner, conditions=(*conditions, *first)))
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
        names = [f"c{number}" for number in range(len(around.loops))]
        space = isl.Space.create_from_names(self._found.context, set=names)
        space = space.set_tuple_name(isl.dim_type.set, name)
        loops = {hash(loop.loop_var): number for number, loop in enumerate(around.loops)}
        reader = AffineReader(space, loops, around.bound, self._found.parameters, around.stored)
        domain, exact = self._domain(reader, around)
        reader.within(domain)
        if around.conditions or not exact:
            # With what is known of the loops, more conditions and bounds are understood.
            domain, exact = self._domain(reader, around)
            reader.within(domain)
        for reason in self._unread:
            self.note(reason)
        if not exact:
            self.keep("it is not known when a statement runs")
        accesses = _Accesses(self, reader, domain, around)
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
                domain,
                exact,
                tuple(accesses.found),
            )
        )

    def _domain(self, reader: AffineReader, around: _Around) -> tuple[isl.Set, bool]:
        """The iterations of the loops for which the conditions hold, and whether all are known."""
        domain, exact = isl.Set.universe(reader.space), True
        self._unread = []
        for loop in around.loops:
            if loop.step is not None and not _is_one(loop.step):
                raise NotAffine(f"loop {loop.loop_var.name} has steps of {loop.step}")
            try:
                variable = reader.value(loop.loop_var)
                low = reader.value(loop.min)
                domain = domain.intersect(variable.ge_set(low))
                domain = domain.intersect(variable.lt_set(low.add(reader.value(loop.extent))))
            except NotAffine as error:
                exact = False
                self._unread.append(f"the bounds of loop {loop.loop_var.name}: {error.reason}")
        for condition in around.conditions:
            try:
                domain = domain.intersect(reader.condition(condition))
            except NotAffine as error:
                exact = False
                self._unread.append(error.reason)
        return self._found.parameters.possible(domain), exact

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
            indices = [_address(buffer, indices)]
        while hash(buffer) in self._views:
            view = self._views[hash(buffer)]
            starts = [_address(view.base, view.start)] if is_flat else view.start
            indices = [_behind(start, index) for start, index in zip(starts, indices, strict=True)]
            buffer = view.base
        return buffer, indices


class _Accesses:
    """The accesses of one statement."""

    def __init__(
        self, owner: _Reader, reader: AffineReader, domain: isl.Set, around: _Around
    ) -> None:
        self.found: list[Access] = []
        self._owner = owner
        self._reader = reader
        self._domain = domain
        self._around = around

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
        one = NotedAccess(name, whole, copies, indices, self._reader, where, writes, exact)
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
    for view in _views_in(func.body).items():
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


def _combines(store: Any) -> bool:
    """Whether one term of the value is the element itself, and the others do not load the array."""
    kinds = _CHAINS.get(type(store.value))
    if kinds is None:
        return False
    terms = list(_terms(store.value, kinds))
    own = [term for term, is_added in terms if is_added and _is_element(term, store)]
    others = [term for term, _ in terms if not any(term is one for one in own)]
    loads = [load for term in others for load in nodes(term, tvm.ir.TensorLoad)]
    return len(own) == 1 and not any(load.source.same_as(store.buffer) for load in loads)


_CHAINS: dict[type, tuple[type, ...]] = {
    tirx.Add: (tirx.Add, tirx.Sub),
    tirx.Sub: (tirx.Add, tirx.Sub),
    tirx.Mul: (tirx.Mul,),
    tirx.Min: (tirx.Min,),
    tirx.Max: (tirx.Max,),
}


def _terms(expr: Any, kinds: tuple[type, ...], is_added: bool = True) -> Iterator[tuple[Any, bool]]:
    """What a sum or product combines, each with whether it is added and not taken away."""
    if type(expr) not in kinds:
        yield expr, is_added
        return
    yield from _terms(expr.a, kinds, is_added)
    yield from _terms(expr.b, kinds, is_added != isinstance(expr, tirx.Sub))


def _is_element(expr: Any, store: Any) -> bool:
    if not isinstance(expr, tvm.ir.TensorLoad) or not expr.source.same_as(store.buffer):
        return False
    pairs = zip(expr.indices, store.indices, strict=True)
    return all(structural_equal(one, other) for one, other in pairs)


@dataclass(frozen=True)
class _View:
    """A declared array that lies in another one.

    Attributes
    ----------
    base : tirx.Buffer
        The other array.
    start : list
        The indices of the view's first element there.
    is_part : bool
        Whether an element of the view has the sum of its own indices and ``start`` for indices; if
        not, that holds of the addresses only.
    """

    base: Any
    start: list[Any]
    is_part: bool


def _views_in(body: Any) -> dict[int, _View]:
    """The views that a kernel declares of arrays without gaps, by the hash of the view."""
    found: dict[int, _View] = {}
    for declared in nodes(body, tirx.DeclBuffer):
        place = _place_of_view(declared.data)
        if place is None:
            continue
        (base, start), own = place, declared.buffer
        is_known = is_compact(base, True) and is_compact(own, True)
        if is_known and str(own.dtype) == str(base.dtype):
            found[hash(own)] = _View(base, start, _is_part(own, base, start))
    return found


def _place_of_view(data: Any) -> tuple[Any, list[Any]] | None:
    """The array and the indices in it where the memory of a view begins; None if not known."""
    if not isinstance(data, tvm.ir.Call):
        return None
    if data.op.same_as(buffer_data_operator()):
        base = data.args[0]
        return base, [tirx.const(0, "int64")] * len(base.shape)
    first = data.args[0] if str(getattr(data.op, "name", "")) == "tirx.address_of" else None
    return (first.source, list(first.indices)) if isinstance(first, tvm.ir.TensorLoad) else None


def _is_part(own: Any, base: Any, start: list[Any]) -> bool:
    """Whether a view is whole rows of its base: one index of these, and all of what is inside."""
    if len(own.shape) != len(base.shape):
        return False
    inside = 0
    for size, whole, first in zip(own.shape[::-1], base.shape[::-1], start[::-1], strict=True):
        if not structural_equal(size, whole) or static_extent(first) != 0:
            break
        inside += 1
    return all(_is_one(size) for size in own.shape[: max(len(own.shape) - inside - 1, 0)])


def _address(buffer: Any, indices: list[Any]) -> Any:
    """The place of an element in memory, with indices that may be plain numbers.

    Of a vector along the last axis it is a vector as well. Raises NotAffine for any other.
    """
    last = indices[-1] if indices else None
    if isinstance(last, tirx.Ramp):
        start = _address(buffer, [*indices[:-1], last.base])
        return tirx.Ramp(start, last.stride.astype(str(start.ty)), last.lanes)
    if any(nodes(index, tirx.Ramp, tirx.Broadcast) for index in indices):
        raise NotAffine(f"a vector of {buffer.name} runs along no last axis")
    return flat_address(buffer, [tirx.const(0, "int64") + index for index in indices])


def _behind(start: Any, index: Any) -> Any:
    """An index, or the indices of a vector, counted from ``start``."""
    if isinstance(index, tirx.Ramp):
        return tirx.Ramp(start + index.base, index.stride, index.lanes)
    return start + index


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
