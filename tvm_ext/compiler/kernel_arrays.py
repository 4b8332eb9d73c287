"""How much memory the kernels of a program for a CPU allocate for themselves, beside its plan.

TVM gives a kernel such memory from a pool of the thread that asks (src/runtime/workspace_pool.cc)
and keeps it until the thread ends. So what a run leaves is what the pools have grown to, which is
found here by doing to lists of sizes what TVM does to memory.
"""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from tvm_ext.compiler.backend import threads_of
from tvm_ext.compiler.compile_context import CompileContext
from tvm_ext.compiler.kernel_records import calls_at
from tvm_ext.report.memory_plan import StoragePlan
from tvm_ext.report.records import MemoryRecord
from tvm_ext.tir_schedules.analysis.buffer_access import element_bytes, nodes
from tvm_ext.tir_schedules.cpu.llvm_preparation import STAYS_ON_STACK, ArraysOnStack
from tvm_ext.tir_schedules.statements import has_exact_arrays, sizes_at

# What TVM rounds up to, and below what it takes the stack (kMaxStackAlloca).
_PAGE_BYTES = 4096
_STACK_BYTES = 1024
# Kernels with less are not looked at: lowering one takes some milliseconds.
_LEAST_BYTES = _PAGE_BYTES


@dataclass(frozen=True)
class KernelArrays:
    """What the pools have grown to after a run, in bytes.

    Attributes
    ----------
    caller_bytes : int
        Of the thread that runs the program.
    thread_bytes : int
        Of each further thread that takes part in parallel loops.
    by_kernel : mapping of str to KernelArrays
        The same for each kernel alone, by its name: what it has while it runs.
    """

    caller_bytes: int = 0
    thread_bytes: int = 0
    by_kernel: "Mapping[str, KernelArrays]" = field(default_factory=dict, compare=False)

    def bytes_on(self, threads: int) -> int:
        """Of all threads together, if the program runs on so many."""
        return self.caller_bytes + (threads - 1) * self.thread_bytes

    def joined(self, other: "KernelArrays") -> "KernelArrays":
        """The larger of both for each kind of thread."""
        return KernelArrays(
            max(self.caller_bytes, other.caller_bytes), max(self.thread_bytes, other.thread_bytes)
        )


def kernel_arrays(
    kernels: tvm.IRModule, scheduled: tvm.IRModule, sizes: Mapping[str, int]
) -> KernelArrays:
    """What the kernels of a program allocate in a run.

    Parameters
    ----------
    kernels : tvm.IRModule
        The program ahead of schedules, with ``main``, which calls the kernels.
    scheduled : tvm.IRModule
        The same kernels with their schedules.
    sizes : mapping of str to int
        Sizes of the inputs' dimensions, by name.

    Notes
    -----
    Arrays whose size does not follow from ``sizes`` are not counted, and neither are those of
    kernels that have less than 4 KiB of them.
    """
    caller, thread = _Pool(), _Pool()
    alone: dict[str, KernelArrays] = {}
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for func, name, values in _calls(kernels, scheduled, sizes):
        if _bytes_at_most(func, values) < _LEAST_BYTES:
            continue
        scope = _scope_of(func)
        if scope is not None:
            _run(scope, values, caller, None)
            _run(scope, values, None, thread)
            # Most kernels are called with the same sizes each time.
            if (called := (name, tuple(map(int, values.values())))) not in seen:
                seen.add(called)
                alone[name] = alone.get(name, KernelArrays()).joined(_alone(scope, values))
    return KernelArrays(caller.size, thread.size, alone)


def _alone(scope: "_Scope", values: "_Values") -> KernelArrays:
    """What the pools of threads grow to that run nothing else."""
    caller, thread = _Pool(), _Pool()
    _run(scope, values, caller, None)
    _run(scope, values, None, thread)
    return KernelArrays(caller.size, thread.size)


# Arrays as a part of the memory that a program takes.


def largest_kernel_arrays(
    context: CompileContext, kernels: tvm.IRModule, scheduled: tvm.IRModule
) -> KernelArrays:
    """What kernels allocate at the largest sizes that were given, which a limit is for.

    Nothing on machines other than CPUs, whose programs plan what kernels allocate.
    """
    largest = {name: allowed.high for name, allowed in context.ranges.items()}
    return _arrays_at(context, kernels, scheduled, largest)


def with_kernel_arrays(
    context: CompileContext,
    kernels: tvm.IRModule,
    scheduled: tvm.IRModule,
    sizes: Mapping[str, int],
) -> MemoryRecord:
    """The compilation's memory with the arrays of its kernels.

    They are a part of the figures of planned memory, at the largest sizes and on all threads, and
    have figures of their own at ``sizes``, the usual ones of the model.
    """
    usual = _arrays_at(context, kernels, scheduled, sizes)
    largest = largest_kernel_arrays(context, kernels, scheduled)
    memory = context.memory.with_arrays(largest.bytes_on(threads_of(context.machine)))
    return replace(
        memory,
        kernel_bytes=usual.caller_bytes or None,
        kernel_thread_bytes=usual.thread_bytes or None,
    )


def with_arrays_of_calls(plan: StoragePlan, arrays: KernelArrays, threads: int) -> StoragePlan:
    """A plan that says what the kernel of each call allocates for itself while it runs."""
    nothing = KernelArrays()
    functions = [
        replace(
            function,
            workspace_bytes=tuple(
                arrays.by_kernel.get(name, nothing).bytes_on(threads) for name in function.kernels
            ),
        )
        for function in plan.functions
    ]
    return replace(plan, functions=tuple(functions))


def _arrays_at(
    context: CompileContext,
    kernels: tvm.IRModule,
    scheduled: tvm.IRModule,
    sizes: Mapping[str, int],
) -> KernelArrays:
    """Looked for once a compilation: a limit, the plan and the report ask for them."""
    if context.target.kind.name != "llvm":
        return KernelArrays()
    key = frozenset(sizes.items())
    if key not in context.kernel_arrays:
        context.kernel_arrays[key] = kernel_arrays(kernels, scheduled, sizes)
    return context.kernel_arrays[key]


_Values = Mapping[tvm.ir.Var, tirx.IntImm]


def _calls(
    kernels: tvm.IRModule, scheduled: tvm.IRModule, sizes: Mapping[str, int]
) -> Iterator[tuple[tirx.PrimFunc, str, _Values]]:
    """Kernels with their symbolic sizes in each call; those of branches come last, without any."""
    functions = {
        str(variable.name_hint): func
        for variable, func in scheduled.functions_items()
        if isinstance(func, tirx.PrimFunc) and _arrays_of(func)
    }
    called = set()
    for name, arguments in calls_at(kernels, sizes) if functions else ():
        if name in functions:
            called.add(name)
            yield functions[name], name, sizes_at(functions[name], arguments or ())
    for name, func in functions.items():
        if name not in called:
            yield func, name, {}


# As many kernels as a large model has: a pass, a limit and the report ask for each.
_MOST_KERNELS = 512


@lru_cache(maxsize=_MOST_KERNELS)
def _arrays_of(func: tirx.PrimFunc) -> tuple[tirx.Buffer, ...]:
    """All arrays of a kernel, as large as they are ahead of lowering."""
    found: list[tirx.Buffer] = []
    for node in nodes(func.body, s_tir.SBlock, tirx.AllocBuffer):
        found += [node.buffer] if isinstance(node, tirx.AllocBuffer) else node.alloc_buffers[:]
    return tuple(found)


def _bytes_at_most(func: tirx.PrimFunc, values: _Values) -> int:
    return sum(_bytes_of(array, values) for array in _arrays_of(func))


def _bytes_of(array: tirx.Buffer, values: _Values) -> int:
    """Zero where the values do not decide them."""
    extents = [_extent(extent, values) for extent in array.shape]
    known = [extent for extent in extents if extent is not None]
    if len(known) < len(extents):
        return 0
    return math.prod(known) * element_bytes(array)


def _extent(extent: tirx.Expr, values: _Values) -> int | None:
    if isinstance(extent, tirx.IntImm):
        return int(extent)
    number = Analyzer().simplify(structural_map(extent, (tvm.ir.Var, lambda v: values.get(v, v))))
    return int(number) if isinstance(number, tirx.IntImm) else None


@lru_cache(maxsize=_MOST_KERNELS)
def _lowered(func: tirx.PrimFunc) -> tirx.Stmt | None:
    """What the kernel does, with its arrays where they are allocated, as large as they are then.

    None where TVM refuses: the build will take another schedule.
    """
    passes = [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        *([] if has_exact_arrays(func) else [s_tir.transform.CompactBufferAllocation()]),
        s_tir.transform.LowerOpaqueBlock(),
        ArraysOnStack(),
    ]
    try:
        return tvm.transform.Sequential(passes)(tvm.IRModule({"main": func}))["main"].body
    except (ValueError, TypeError, RuntimeError) as error:
        if not str(error):
            # An interrupt, as TVM hands it on.
            raise KeyboardInterrupt from None
        return None


def arrays_of_whole_calls(func: tirx.PrimFunc, least_bytes: int) -> list[tirx.Buffer]:
    """Arrays of known size that a kernel has from its beginning to its end.

    They are those of its outermost block that lowering leaves there as they are: it moves an array
    that one iteration of a loop needs into that loop, and makes smaller what is used in part.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        return []
    large = [one for one in func.body.block.alloc_buffers if _bytes_of(one, {}) >= least_bytes]
    body = _lowered(func) if large else None
    if body is None:
        return []
    kept = {
        one.buffer.name: _bytes_of(one.buffer, {})
        for one in _outermost(body)
        if isinstance(one, tirx.AllocBuffer)
    }
    names = Counter(one.buffer.name for one in nodes(body, tirx.AllocBuffer))
    return [
        one
        for one in large
        if one.scope() == "global"
        and names[one.name] == 1
        and kept.get(one.name) == _bytes_of(one, {})
    ]


def _outermost(stmt: tirx.Stmt) -> Iterator[tirx.Stmt]:
    """The statements of a kernel that no loop and no condition is around."""
    if isinstance(stmt, tirx.SeqStmt):
        for one in stmt.seq:
            yield from _outermost(one)
    elif isinstance(stmt, tirx.AttrStmt):
        yield from _outermost(stmt.body)
    else:
        yield stmt


class _Pool:
    """The sizes of what TVM keeps for a thread, as ``WorkspacePool`` changes them."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._used = 0

    @property
    def size(self) -> int:
        """All bytes of the pool."""
        return sum(self._free) + self._used

    def take(self, nbytes: int) -> int:
        """Takes the smallest piece that is large enough, makes the largest larger, or adds one."""
        size = max(-(-nbytes // _PAGE_BYTES), 1) * _PAGE_BYTES
        place = bisect_left(self._free, size)
        if place < len(self._free):
            size = self._free.pop(place)
        elif self._free:
            self._free.pop()
        self._used += size
        return size

    def give_back(self, size: int) -> None:
        """Makes a piece free again."""
        self._used -= size
        insort(self._free, size)


@dataclass(frozen=True)
class _Scope:
    """Statements that give back at their end what they take, and nothing that takes nothing.

    Attributes
    ----------
    parts : tuple of tirx.AllocBuffer or _Scope
        What takes memory, in the order in which it runs.
    parallel : tirx.Expr, optional
        How many parts the parallel loop has that these statements are the body of.
    """

    parts: "tuple[tirx.AllocBuffer | _Scope, ...]"
    parallel: tirx.Expr | None = None


@lru_cache(maxsize=_MOST_KERNELS)
def _scope_of(func: tirx.PrimFunc) -> _Scope | None:
    """What a kernel takes; None where TVM refuses to lower it."""
    body = _lowered(func)
    return None if body is None else _scope(body)


def _scope(stmt: tirx.Stmt, parallel: tirx.Expr | None = None) -> _Scope:
    parts: list[tirx.AllocBuffer | _Scope] = []
    for one in stmt.seq if isinstance(stmt, tirx.SeqStmt) else (stmt,):
        if isinstance(one, tirx.AllocBuffer):
            parts.append(one)
            continue
        shared = isinstance(one, tirx.For) and one.kind == tirx.ForKind.PARALLEL
        inner = [_scope(part, one.extent if shared else None) for part in _parts(one)]
        parts += [scope for scope in inner if scope.parts]
    return _Scope(tuple(parts), parallel)


def _run(scope: _Scope, values: _Values, caller: _Pool | None, thread: _Pool | None) -> None:
    """Takes and gives back what statements do, the calling thread's or another one's.

    The calling thread runs parts of parallel loops as well; others run nothing else.
    """
    taken: list[int] = []
    for one in scope.parts:
        if isinstance(one, tirx.AllocBuffer):
            if caller is not None and (nbytes := _pooled_bytes(one, values)):
                taken.append(caller.take(nbytes))
        elif one.parallel is not None:
            alone = (_extent(one.parallel, values) or 0) == 1
            _run(one, values, caller or (None if alone else thread), None)
        else:
            _run(one, values, caller, thread)
    if caller is not None:
        for size in reversed(taken):
            caller.give_back(size)


def _parts(stmt: tirx.Stmt) -> Sequence[tirx.Stmt]:
    """The statements within one, each of which gives back at its end what it has taken."""
    if isinstance(stmt, tirx.SeqStmt):
        return (stmt,)
    if isinstance(stmt, tirx.IfThenElse):
        return [part for part in (stmt.then_case, stmt.else_case) if part is not None]
    return (stmt.body,) if isinstance(stmt, tirx.For | tirx.While | tirx.AttrStmt) else ()


def _pooled_bytes(stmt: tirx.AllocBuffer, values: _Values) -> int:
    """What it takes from the pool; zero for what lies on the stack."""
    if STAYS_ON_STACK in stmt.annotations:
        return 0
    array = stmt.buffer
    nbytes = _bytes_of(array, values)
    is_fixed = all(isinstance(extent, tirx.IntImm) for extent in array.shape)
    return 0 if is_fixed and nbytes < _STACK_BYTES and array.scope() == "global" else nbytes
