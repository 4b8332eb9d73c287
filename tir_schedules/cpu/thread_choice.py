"""Threads for loops of symbolic size only where the sizes of a run are worth it.

Handing work to threads takes microseconds, and waking them up tens of these: a classifier of one
row takes less in all. Where all sizes are known the schedules decide; here a run does.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer
from tvm.tirx.buffer import buffer_data, buffer_data_pointer_type
from tvm_ffi import structural_map, structural_walk

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    buffer_bytes,
    depends,
    element_bytes,
    nodes,
    static_extent,
    static_product,
)
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.cpu.parallel_vectorize import PARALLEL_GAIN
from tvm_ext.tir_schedules.statements import (
    buffer_data_operator,
    changed_block,
    changed_loop,
    sequence,
)

# On loops that a run chooses from, and on loops over a batch whose items are shared by threads.
_MARK, _ITEMS = "tvm_ext_thread_choice", "tvm_ext_batch_items"
# Around loops that have threads where a condition holds.
CONDITION = "tvm_ext.threads_if"

# Items for each thread, at least, so that a last round of few does not make the others wait.
_ENOUGH_ITEMS = 4

# Cycles at most that a statement waits for weights, and for what other cores have written: it may
# read a part of an array only.
_LOADING_STATEMENT, _HANDED_OVER_STATEMENT = 8, 128

# Taken for a loop that only its condition ends.
_TURNS_OF_WHILE = 8


@dataclass(frozen=True)
class ThreadChoice:
    """A kernel after ``with_thread_choice``.

    Attributes
    ----------
    func : tirx.PrimFunc
        The kernel; the one given when nothing was changed.
    loops : int
        The loops that have threads in some runs only now.
    left : int
        Parallel loops of symbolic size whose work no expression of the kernel's sizes says.
    """

    func: tirx.PrimFunc
    loops: int
    left: int


def with_thread_choice(func: tirx.PrimFunc, machine: CpuDescription) -> ThreadChoice:
    """``func`` whose parallel loops of symbolic work have threads where a condition holds.

    That is where the statements in the loop are more than the threads' price in cycles. Until
    ``OutlineThreadChoices`` the condition stands around the loop, so that all that lowers a kernel
    sees one loop.
    """
    least = round(PARALLEL_GAIN * machine.parallel_overhead_us * machine.clock_ghz * 1e3)
    loops = left = 0

    def chosen(node: tirx.For) -> tirx.Stmt:
        nonlocal loops, left
        if _ITEMS in node.annotations:
            loops += 1
            return _items_or_parts(node, machine.cores)
        if tirx.ForKind(node.kind) != tirx.ForKind.PARALLEL or _MARK in node.annotations:
            return node
        work = _work(node, frozenset())
        if work is None:
            left += not isinstance(node.extent, tirx.IntImm)
            return node
        work = Analyzer().simplify(_with_loading(work, node, machine))
        if isinstance(work, tirx.IntImm) or _at_least(work) > least:
            return node
        loops += 1
        many = work > tirx.const(least, "int64")
        loop = _version(node, tirx.ForKind.PARALLEL)
        return tirx.AttrStmt(tirx.const(0, "int32"), CONDITION, many, loop)

    body = structural_map(func.body, (tirx.For, chosen))
    if not loops:
        return ThreadChoice(func, loops, left)
    # The versions of a loop over a batch have variables and buffers of their own.
    mod = tirx.transform.ConvertSSA()(tvm.IRModule({"main": func.with_body(body)}))
    return ThreadChoice(mod["main"], loops, left)


def _blocks(stmt: tirx.Stmt) -> list[s_tir.SBlock]:
    found: list[s_tir.SBlock] = []
    structural_walk(stmt, (s_tir.SBlock, lambda block: found.append(block)))
    return found


def _allocated(stmt: tirx.Stmt) -> set[tirx.Buffer]:
    return {buffer for block in _blocks(stmt) for buffer in block.alloc_buffers}


def _version(loop: tirx.For, kind: tirx.ForKind) -> tirx.For:
    marks = {key: value for key, value in loop.annotations.items() if key != _ITEMS}
    if kind == tirx.ForKind.PARALLEL:
        marks[_MARK] = tirx.const(1, "int32")
    return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body, None, marks)


def _work(stmt: tirx.Stmt, inner: frozenset[tirx.Var]) -> tvm.ir.Expr:
    """Statements that run, int64; None where the variables ``inner`` decide it."""
    match stmt:
        case tirx.For():
            extent = _known(stmt.extent, inner)
            body = _work(stmt.body, inner | {stmt.loop_var})
            if extent is None or body is None:
                return None
            is_vector = tirx.ForKind(stmt.kind) == tirx.ForKind.VECTORIZED
            return body if is_vector and not _gathers(stmt) else extent * body
        case tirx.SeqStmt():
            return _sequence_work(list(stmt.seq), inner)
        case tirx.IfThenElse():
            ways = [stmt.then_case] + ([stmt.else_case] if stmt.else_case is not None else [])
            return _sequence_work(ways, inner)
        case s_tir.SBlockRealize():
            block = stmt.block
            inside = inner | {one.var for one in block.iter_vars}
            # The start value of a reduction is set once in many turns.
            return _work(block.body, inside)
        case tirx.While():
            body = _work(stmt.body, inner)
            return None if body is None else body * tirx.const(_TURNS_OF_WHILE, "int64")
        case tirx.AttrStmt():
            return _work(stmt.body, inner)
        case tirx.BufferStore():
            return tirx.const(1 + _bit_operations(stmt.value) // 2, "int64")
        case _:
            return tirx.const(1, "int64")


# What takes a number of four bits out of its word, beside the multiplication and addition.
_OF_BITS = (tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor, tirx.LShift, tirx.RShift)


def _bit_operations(value: tvm.ir.Expr) -> int:
    """Operations on bits in a value, of which two take a cycle."""
    return len(nodes(value, *_OF_BITS))


def _gathers(loop: tirx.For) -> bool:
    """Whether what a tensor holds decides what each iteration reads: lane by lane, in a vector."""
    indices = [i for load in nodes(loop.body, tvm.ir.TensorLoad) for i in load.indices]
    tables = [table for index in indices for table in nodes(index, tvm.ir.TensorLoad)]
    return any(depends(place, loop.loop_var) for table in tables for place in table.indices)


def _at_least(work: tvm.ir.Expr) -> int:
    """``work`` for sizes of one, if it can be told: larger ones are more of it."""
    sizes = tirx.analysis.undefined_vars(work)
    smallest = substitute(work, {size: tirx.const(1, str(size.ty)) for size in sizes})
    return static_extent(Analyzer().simplify(smallest)) or 0


def _with_loading(work: Any, loop: tirx.For, machine: CpuDescription) -> Any:
    """The cycles of ``work``, one a statement, or more where it waits for arrays.

    Arrays of known size, weights say, come from outside of L2. Arrays of a size that a run decides
    come from the caches of the cores that wrote them.
    """
    inside = _allocated(loop)
    loads = {load.source for load in nodes(loop.body, tvm.ir.TensorLoad)} - inside
    stores = {store.buffer for store in nodes(loop.body, tirx.BufferStore)} - inside
    nbytes = sum(buffer_bytes(one) for one in loads if static_product(one.shape) is not None)
    loading: Any = tirx.const(0, "int64")
    if nbytes > machine.l2_bytes:
        one_core = machine.with_cores(1).bandwidth(nbytes)
        cycles = nbytes / one_core * machine.clock_ghz * 1e9
        most = work * tirx.const(_LOADING_STATEMENT, "int64")
        loading = tirx.min(tirx.const(round(cycles), "int64"), most)
    written = [one for one in loads | stores if static_product(one.shape) is None]
    moved = _bytes_at_run(written, loop)
    # Cycles for 64 bytes, a number that is not far from a whole one.
    line = tirx.const(round(64 * machine.clock_ghz / machine.core_memory_gbs), "int64")
    most = work * tirx.const(_HANDED_OVER_STATEMENT, "int64")
    handed_over = tirx.min(tirx.floordiv(moved, tirx.const(64, "int64")) * line, most)
    return tirx.max(work + loading, handed_over)


def _bytes_at_run(arrays: Iterable[tirx.Buffer], loop: tirx.For) -> Any:
    """Bytes of arrays, int64, of those whose shapes do not depend on the variable of ``loop``."""
    total: Any = tirx.const(0, "int64")
    for array in sorted(arrays, key=lambda one: str(one.name)):
        if not any(depends(size, loop.loop_var) for size in array.shape):
            sizes = [size.astype("int64") for size in array.shape]
            total = total + math.prod(sizes, start=tirx.const(element_bytes(array), "int64"))
    return total


def _sequence_work(parts: list[tirx.Stmt], inner: frozenset[tirx.Var]) -> tvm.ir.Expr:
    total: Any = tirx.const(0, "int64")
    for part in parts:
        work = _work(part, inner)
        if work is None:
            return None
        if isinstance(part, tirx.Bind):
            inner = inner | {part.var}
            continue
        total = total + work
    return total


def _known(extent: tvm.ir.Expr, inner: frozenset[tirx.Var]) -> Any:
    """The extent where no variables inside and no tensors decide it, or what bounds it."""
    decides = any(variable in inner for variable in tirx.analysis.undefined_vars(extent))
    if not decides and not nodes(extent, tvm.ir.TensorLoad):
        return extent.astype("int64")
    if not isinstance(extent, tirx.Min | tirx.Max):
        return None
    ways = [way for way in (_known(extent.a, inner), _known(extent.b, inner)) if way is not None]
    if isinstance(extent, tirx.Min):
        return ways[0] if ways else None
    return tirx.max(*ways) if len(ways) == 2 else None


def _items_or_parts(loop: tirx.For, threads: int) -> tirx.Stmt:
    """Threads that take whole items where these are enough, and parts of one item else."""
    copies = {one: tirx.Var(one.name, one.ty) for one in _allocated(loop)}

    def in_series(node: tirx.For) -> tirx.For:
        is_parallel = tirx.ForKind(node.kind) == tirx.ForKind.PARALLEL
        return changed_loop(node, kind=tirx.ForKind.SERIAL) if is_parallel else node

    def unconditional(node: tirx.AttrStmt) -> tirx.Stmt:
        return node.body if node.attr_key == CONDITION else node

    items = structural_map(loop, [(tirx.For, in_series), (tirx.AttrStmt, unconditional)])
    items = structural_map(items, (tirx.Var, lambda variable: copies.get(variable, variable)))
    items = structural_map(items, (s_tir.SBlock, _with_own_memory))
    count, most = loop.extent, tirx.const(_ENOUGH_ITEMS * threads, str(loop.extent.ty))
    even = tirx.floormod(count, tirx.const(threads, str(count.ty))) == tirx.const(0, str(count.ty))
    parts = _version(loop, tirx.ForKind.SERIAL)
    items = _version(items, tirx.ForKind.PARALLEL)
    return tirx.IfThenElse(tirx.any(even, count >= most), items, parts)


def _with_own_memory(block: s_tir.SBlock) -> s_tir.SBlock:
    """``block`` whose loops share no small arrays, where several follow each other.

    In one thread TVM would lay the sums of a loop into small arrays of those before it, and LLVM
    would not keep them in registers. It does not where these are still read at the end.
    """
    if not isinstance(block.body, tirx.SeqStmt):
        return block
    nothing = tirx.Evaluate(tirx.const(0, "int32"))
    arrays = nodes(list(block.body.seq)[:-1], tirx.AllocBuffer)
    body = structural_map(
        block.body,
        (tirx.AllocBuffer, lambda one: nothing if any(one.same_as(a) for a in arrays) else one),
    )
    reads = [
        tirx.Evaluate(tirx.BufferLoad(array.buffer, [tirx.const(0, "int64")])) for array in arrays
    ]
    return changed_block(block, body=sequence([*arrays, body, *reads]))


def without_choice(loop: tirx.For) -> tirx.For:
    """A parallel loop that is worth its threads at any size."""
    return _version(loop, tirx.ForKind.PARALLEL)


def over_items(loop: tirx.For) -> tirx.For:
    """A loop over a batch, inside of which threads share the parts of each item.

    ``with_thread_choice`` gives it a version in which threads take an item each.
    """
    return changed_loop(loop, annotations={_ITEMS: tirx.const(1, "int32")})


# Conditional threads in the code: the loop's body as a function that both ways call.

# Ranges that the turns of a loop are cut into, at least and for each core: a saved model may run
# with more threads than it was planned for.
_RANGES, _RANGES_OF_CORE = 64, 4

# What a kernel says that its parts have to say, too.
_KEPT = ("target", "tirx.noalias", "tirx.is_host_func")


@tvm.transform.module_pass(opt_level=0, name="OutlineThreadChoices")
class OutlineThreadChoices:
    """Makes functions of the loops that have threads in some runs only.

    Before: ``with T.attr(0, "tvm_ext.threads_if", n > 9): for i in T.parallel(n): body``
    After:  ``if n > 9: for r in T.parallel(64): turns(r * n // 64, (r + 1) * n // 64, ...)``,
    ``else: turns(0, n, ...)``, and ``turns(first, end, ...)`` with ``for i in range(first, end)``

    Two loops instead would be twice the code for LLVM to work on.

    Run after: MakePackedAPI, FlattenBuffer. Run before: LowerTVMBuiltin.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when no kernel has such a loop."""
        functions: dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc] = {}
        for var, func in mod.functions_items():
            outlined = _Outlined(str(var.name_hint), func)
            functions.update({**outlined.functions, var: outlined.kernel})
        return tvm.IRModule(functions, attrs=mod.attrs)


class _Outlined:
    """A lowered kernel whose loops with conditional threads became ``functions``."""

    def __init__(self, name: str, kernel: tirx.PrimFunc) -> None:
        self._name, self._kernel = name, kernel
        target = (kernel.attrs or {}).get("target")
        cores = target.attrs.get("num-cores", 1) if target is not None else 1
        self._ranges = max(_RANGES, _RANGES_OF_CORE * int(cores))
        self._base: dict[Any, Any] = {}
        self.functions: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
        structural_walk(kernel.body, (tirx.DeclBuffer, self._note_view), order="pre")
        body = structural_map(kernel.body, (tirx.AttrStmt, self._chosen))
        self.kernel = kernel.with_body(body) if self.functions else kernel

    def _note_view(self, view: tirx.DeclBuffer) -> None:
        data = view.data
        if isinstance(data, tvm.ir.Call) and data.op.same_as(buffer_data_operator()):
            self._base[view.buffer] = self._base.get(data.args[0], data.args[0])

    def _chosen(self, node: tirx.AttrStmt) -> tirx.Stmt:
        if node.attr_key != CONDITION:
            return node
        *before, loop = node.body.seq if isinstance(node.body, tirx.SeqStmt) else [node.body]
        turns = self._function(loop)
        extent = loop.extent.astype("int64")
        zero, ranges = tirx.const(0, "int64"), tirx.const(self._ranges, "int64")
        number = tirx.Var("range", "int64")
        first, end = (tirx.truncdiv(n * extent, ranges) for n in (number, number + 1))
        parallel = tirx.For(number, zero, ranges, tirx.ForKind.PARALLEL, turns(first, end))
        choice = tirx.IfThenElse(node.value, parallel, turns(zero, extent))
        return sequence([*before, choice])

    def _function(self, loop: tirx.For) -> Callable[[Any, Any], tirx.Stmt]:
        """Calls of a new function, which takes the turns between two numbers."""
        dtype = str(loop.loop_var.ty)
        first, end = tirx.Var("first", dtype), tirx.Var("end", dtype)
        body: tirx.Stmt = tirx.For(
            loop.loop_var, loop.min + first, end - first, tirx.ForKind.SERIAL, loop.body
        )
        outside = [one for one in tirx.analysis.undefined_vars(body) if one not in (first, end)]
        arrays = [one for one in outside if isinstance(one.ty, tirx.BufferType)]
        # Views of the same memory come by one pointer: LLVM is told that pointers do not overlap.
        memory = {base: _pointer(base) for base in map(self._based, arrays)}
        views = [tirx.DeclBuffer(one, data=memory[self._based(one)]) for one in arrays]
        numbers = [one for one in outside if one not in arrays]
        sizes = [v for a in arrays for n in a.shape for v in tirx.analysis.undefined_vars(n)]
        numbers = list(dict.fromkeys([*numbers, *sizes]))
        name = f"{self._name}_range_{len(self.functions)}"
        var = tvm.ir.GlobalVar(name)
        params = [first, end, *memory.values(), *numbers]
        # LLVM would put the body into both calls again, but never inlines a scope of this kind.
        scope = tirx.AttrStmt(tirx.const(0, "int32"), "compute_scope", tvm.ir.StringImm(name), body)
        self.functions[var] = self._like_kernel(params, sequence([*views, scope]))

        def call(begin: Any, stop: Any) -> tirx.Stmt:
            ends = [place.astype(dtype) for place in (begin, stop)]
            arguments = [*ends, *map(buffer_data, memory), *numbers]
            result = tvm.ir.Call(var, arguments, ret_ty="int32")
            failed = tirx.call_intrin("int32", "tirx.tvm_throw_last_error")
            return tirx.IfThenElse(result != tirx.const(0, "int32"), tirx.Evaluate(failed), None)

        return call

    def _based(self, array: Any) -> Any:
        return self._base.get(array, array)

    def _like_kernel(self, params: list[Any], body: tirx.Stmt) -> tirx.PrimFunc:
        """A function for the same target, which no other module sees."""
        zero = tirx.const(0, "int32")
        for key, value in (("device_type", tvm.cpu().dlpack_device_type()), ("device_id", 0)):
            body = tirx.AttrStmt(zero, key, tirx.const(value, "int32"), body)
        kept = {key: self._kernel.attrs[key] for key in _KEPT if key in self._kernel.attrs}
        attrs = tvm.ir.make_node("ir.DictAttrs", **kept)
        return tirx.PrimFunc(params, body, tvm.ir.PrimType("int32"), attrs)


def _pointer(array: Any) -> tirx.Var:
    return tirx.Var(f"{array.name}_data", buffer_data_pointer_type(array))
