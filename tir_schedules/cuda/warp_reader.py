"""What the warps of a scheduled kernel for a GPU do, and which memory their accesses touch.

Accesses are looked at as the warps of some blocks, spread over the grid, make them: which sectors
of global memory the threads of a warp touch at a time, and which banks of shared memory. Threads
for which a condition does not hold take no part; a condition on data holds half of the time.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.hardware.matrix_instructions import MatrixInstruction, read_call
from tvm_ext.tir_schedules.analysis.buffer_access import (
    buffer_bytes,
    element_bytes,
    is_conditional,
    nodes,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.index_values import spread_points, values_of

WARP = 32
SECTOR_BYTES = 32
"""What global memory is read in. CUDA C++ Best Practices Guide, "Coalesced Access"."""

BANKS = 32
BANK_BYTES = 4

# A matrix instruction of a warpgroup is one of four warps: PTX ISA, "wgmma.mma_async".
_GROUP_WARPS = 4

# Blocks of threads that are looked at where hundreds of kernels are asked about.
_FEW_SAMPLES = 8

_SIMPLE = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max, tirx.Select, tirx.Cast),
    *(tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE),
)
_CHEAP_CALLS = ("prim.if_then_else", "tirx.reinterpret", "tirx.likely", "tirx.fabs")


@dataclass(frozen=True)
class WarpLoop:
    """A loop around an access; blocks and threads are loops as well.

    Attributes
    ----------
    var : tirx.Var
        Its variable.
    name : str
        That of the variable, or "threadIdx.x" and the like.
    extent : float
        Iterations; their mean where they vary.
    """

    var: tirx.Var
    name: str
    extent: float


@dataclass(frozen=True, eq=False)
class WarpAccess:
    """A load or a store of global or shared memory.

    Attributes
    ----------
    buffer : tirx.Buffer
        Where.
    index : tirx.Expr
        Its address in elements.
    is_store : bool
        Whether it writes.
    lanes : int
        Elements that a thread accesses at a time.
    loops : tuple[WarpLoop, ...]
        Around it, outermost first.
    requests : float
        How often a warp makes it, on average.
    cost, least : float
        For all requests of a warp: sectors, or cycles of the banks of shared memory, and how few
        would do for the bytes that its threads ask for.
    """

    buffer: tirx.Buffer
    index: tirx.Expr
    is_store: bool
    lanes: int
    loops: tuple[WarpLoop, ...]
    requests: float
    cost: float
    least: float

    @property
    def is_shared(self) -> bool:
        """Whether it goes to shared memory."""
        return bool(self.buffer.scope().startswith("shared"))


@dataclass
class CudaKernel:
    """What a kernel does.

    Attributes
    ----------
    blocks, threads : int
        Blocks of the grid, threads of a block.
    shared_bytes : int
        Shared memory of a block.
    parameter_bytes : int
        All tensors, each once.
    matrix_flops : dict[MatrixInstruction, float]
        Operations of a warp's matrix instructions.
    operations, functions : float
        Other operations of a thread on values: those done at the full rate, and exponentials,
        divisions and the like.
    accesses : list[WarpAccess]
        Loads and stores of a warp, to global and shared memory.
    matrix_loads : float
        Instructions of a warp that load tiles of shared memory for matrix instructions.
    bound : dict[Any, Any]
        The values of variables that are no loops, by variable.
    """

    blocks: int = 1
    threads: int = 1
    shared_bytes: int = 0
    parameter_bytes: int = 0
    matrix_flops: dict[MatrixInstruction, float] = field(default_factory=dict)
    operations: float = 0.0
    functions: float = 0.0
    accesses: list[WarpAccess] = field(default_factory=list)
    matrix_loads: float = 0.0
    bound: dict[Any, Any] = field(default_factory=dict)

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return math.ceil(self.threads / WARP)

    @property
    def memory_instructions(self) -> float:
        """Loads and stores of a warp."""
        return sum(access.requests for access in self.accesses) + self.matrix_loads

    @property
    def sectors(self) -> float:
        """Sectors of global memory that a warp touches."""
        return sum(access.cost for access in self.accesses if not access.is_shared)

    @property
    def bank_cycles(self) -> float:
        """Cycles in which the banks of shared memory serve a warp."""
        # Matrix loads: four tiles of 8 rows of 16 bytes, each a cycle of all banks.
        shared = sum(access.cost for access in self.accesses if access.is_shared)
        return shared + 4 * self.matrix_loads

    @property
    def widest(self) -> int:
        """Bytes of the widest access of a thread to global memory."""
        widths = [a.lanes * element_bytes(a.buffer) for a in self.accesses if not a.is_shared]
        return max(widths, default=1)


def read_kernel(func: tirx.PrimFunc, samples: int = _FEW_SAMPLES) -> CudaKernel:
    """The kernel of a function that ``lowered`` returned, from so many of its blocks."""
    launches = [stmt for stmt in nodes(func.body, tirx.AttrStmt) if _tag(stmt)]
    extents: dict[str, int] = {}
    for stmt in launches:
        tag = _tag(stmt)
        extents[tag] = max(extents.get(tag, 1), static_extent(stmt.value) or 1)
    kernel = CudaKernel(
        math.prod(n for tag, n in extents.items() if tag.startswith("blockIdx")),
        math.prod(n for tag, n in extents.items() if tag.startswith("threadIdx")),
        parameter_bytes=sum(buffer_bytes(p) for p in func.params if hasattr(p, "shape")),
    )
    _WarpReader(kernel, extents, samples).read(func.body, 1.0)
    return kernel


def _tag(stmt: tirx.AttrStmt) -> str:
    return str(stmt.node.thread_tag) if stmt.attr_key == "thread_extent" else ""


class _WarpReader:
    """Walks through a kernel with the values that its variables have in the sampled threads."""

    def __init__(self, kernel: CudaKernel, extents: dict[str, int], samples: int) -> None:
        self._kernel, self._extents, self._samples = kernel, extents, samples
        threads = np.arange(WARP * kernel.warps)
        self._places = _places(extents, np.tile(threads, samples))
        self._active = np.tile(threads < kernel.threads, samples)
        self._known: dict[int, np.ndarray] = {}
        self._loops: tuple[WarpLoop, ...] = ()
        # What was loaded since the loop around began, which a compiler keeps in registers.
        self._held: dict[Any, tirx.Buffer] = {}
        self._readers = {
            tirx.SeqStmt: self._sequence,
            tirx.For: self._loop,
            tirx.AttrStmt: self._attribute,
            tirx.IfThenElse: self._branch,
            tirx.BufferStore: self._store,
            tirx.AllocBuffer: self._allocate,
            tirx.Bind: self._bind,
            tirx.Evaluate: self._evaluate,
        }

    def read(self, stmt: tirx.Stmt, times: float) -> None:
        """Adds a statement that each warp that gets there runs ``times`` times."""
        reader = self._readers.get(type(stmt))
        if reader is not None:
            reader(stmt, times)
        elif hasattr(stmt, "body"):
            self.read(stmt.body, times)

    def _sequence(self, stmt: tirx.SeqStmt, times: float) -> None:
        for part in stmt.seq:
            self.read(part, times)

    def _loop(self, loop: tirx.For, times: float) -> None:
        extents = self._turns(loop.extent)
        by_warp = np.where(self._active, extents, 0).reshape(-1, WARP).max(axis=1)
        reached = self._active.reshape(-1, WARP).any(axis=1)
        # Threads of a warp wait for the one that goes round most often.
        extent = float(by_warp[reached].mean()) if reached.any() else 0.0
        first = values_of(loop.min, self._known)
        steps = self._sampled(len(self._loops), extents)
        self._known[hash(loop.loop_var)] = np.asarray(0 if first is None else first) + steps
        around = self._loops
        self._loops = (*around, WarpLoop(loop.loop_var, str(loop.loop_var.name), extent))
        self._held = {}
        self.read(loop.body, times * extent)
        self._loops, self._held = around, {}

    def _sampled(self, depth: int, extents: Any) -> np.ndarray:
        """An iteration for each block that is looked at, the same for all of its threads."""
        points = spread_points(depth, self._samples)
        chosen = np.repeat(points, WARP * self._kernel.warps)
        return np.floor(chosen * extents).astype(np.int64)

    def _turns(self, extent: tirx.Expr) -> np.ndarray:
        """How often a loop runs, for each thread that is looked at."""
        fixed = static_extent(extent)
        found = values_of(extent, self._known) if fixed is None else fixed
        return np.broadcast_to(np.asarray(1 if found is None else found), len(self._active))

    def _attribute(self, stmt: tirx.AttrStmt, times: float) -> None:
        tag = _tag(stmt)
        around = self._loops
        if tag in self._extents:
            # Of several kernels one has the most blocks; the others do their work in some of them.
            own = static_extent(stmt.value) or 1
            times *= own / self._extents[tag]
            # Of a cluster, where all do the same, the first.
            block = self._sampled(len(around), own) if tag.startswith("blockIdx") else np.asarray(0)
            self._known[hash(stmt.node.var)] = self._places.get(tag, block)
            self._loops = (*around, WarpLoop(stmt.node.var, tag, own))
        self.read(stmt.body, times)
        self._loops = around

    def _branch(self, stmt: tirx.IfThenElse, times: float) -> None:
        for case, holds in ((stmt.then_case, True), (stmt.else_case, False)):
            if case is not None:
                self._where(stmt.condition, holds, times, lambda n, case=case: self.read(case, n))

    def _where(self, condition: tirx.Expr, holds: bool, times: float, read: Any) -> None:
        """Reads something for the threads in which a condition holds, or does not."""
        found = values_of(condition, self._known)
        if found is None:
            read(times / 2)
            return
        around, held = self._active, self._held
        self._active = around & (np.asarray(found).astype(bool) == holds)
        self._held = dict(held)
        if self._active.any():
            read(times)
        # A store in there ends what was held before.
        inside, self._active = self._held, around
        self._held = {key: buffer for key, buffer in held.items() if key in inside}

    def _share(self) -> float:
        """Of all warps those with an active thread."""
        return float(self._active.reshape(-1, WARP).any(axis=1).mean())

    def _allocate(self, stmt: tirx.AllocBuffer, times: float) -> None:
        if stmt.buffer.scope().startswith("shared"):
            self._kernel.shared_bytes += buffer_bytes(stmt.buffer)

    def _bind(self, stmt: tirx.Bind, times: float) -> None:
        self._kernel.bound[stmt.var] = stmt.value
        value = values_of(stmt.value, self._known)
        if value is not None:
            self._known[hash(stmt.var)] = value
        self._value(stmt.value, times)

    def _store(self, stmt: tirx.BufferStore, times: float) -> None:
        self._value(stmt.value, times)
        self._access(stmt.buffer, stmt.indices, _lanes(stmt.value), times, is_store=True)
        written = stmt.buffer
        held = self._held.items()
        self._held = {key: buffer for key, buffer in held if not buffer.same_as(written)}

    def _evaluate(self, stmt: tirx.Evaluate, times: float) -> None:
        call = stmt.value
        # What others wrote before a barrier is not what was loaded ahead of it.
        self._held = {}
        if not isinstance(call, tvm.ir.Call):
            return
        words = [str(arg.value) for arg in call.args if isinstance(arg, tvm.ir.StringImm)]
        name = str(getattr(call.op, "name", ""))
        times *= self._share()
        found = read_call(name, words)
        if found is not None:
            self._matrix_instruction(*found, times)
        elif "ldmatrix" in name:
            self._kernel.matrix_loads += times

    def _matrix_instruction(
        self, instruction: MatrixInstruction, columns: int, times: float
    ) -> None:
        flops = 2.0 * instruction.m * columns * instruction.k * times
        if instruction.held == "shared":
            flops /= _GROUP_WARPS
        totals = self._kernel.matrix_flops
        totals[instruction] = totals.get(instruction, 0.0) + flops

    def _value(self, value: tirx.Expr, times: float) -> None:
        self._loads(value, times)
        times *= self._share()
        for kind in _SIMPLE:
            self._kernel.operations += times * sum(map(_lanes, nodes(value, kind)))
        for call in nodes(value, tvm.ir.Call):
            if str(getattr(call.op, "name", "")) not in _CHEAP_CALLS:
                self._kernel.functions += times * _lanes(call)
        self._kernel.functions += times * sum(map(_lanes, nodes(value, tirx.Div)))

    def _loads(self, value: tirx.Expr, times: float) -> None:
        """Adds what an expression loads: each element once, and only where a branch asks for it."""
        for node in _loads_and_branches(value):
            if isinstance(node, tvm.ir.TensorLoad):
                key = tvm_ffi.StructuralKey(node)
                if key not in self._held:
                    self._held[key] = node.source
                    self._access(node.source, node.indices, _lanes(node), times, is_store=False)
                continue
            condition, *branches = node.args
            self._loads(condition, times)
            for branch, holds in zip(branches, (True, False), strict=True):
                self._where(
                    condition, holds, times, lambda n, branch=branch: self._loads(branch, n)
                )

    def _access(
        self, buffer: tirx.Buffer, indices: Any, lanes: int, times: float, is_store: bool
    ) -> None:
        scope = buffer.scope()
        if scope.startswith("local") or not len(indices):
            return
        size = element_bytes(buffer)
        first = self._addresses(indices[-1], lanes, size).reshape(-1, WARP)
        active = self._active.reshape(-1, WARP)
        width = lanes * size
        asked = _distinct(first, active, width, size)[1] * size
        if scope.startswith("shared"):
            cost = _bank_cycles(first, active, width)
            least = np.ceil(asked / (BANKS * BANK_BYTES))
        else:
            cost = _distinct(first, active, width, SECTOR_BYTES)[1]
            least = np.ceil(asked / SECTOR_BYTES)
        self._kernel.accesses.append(
            WarpAccess(
                buffer,
                indices[-1],
                is_store,
                lanes,
                self._loops,
                times * self._share(),
                times * float(cost.mean()),
                times * float(least.mean()),
            )
        )

    def _addresses(self, index: tirx.Expr, lanes: int, size: int) -> np.ndarray:
        """Byte address of each thread's first element; side by side where it depends on data."""
        base = index.base if isinstance(index, tirx.Ramp) else index
        values = values_of(base, self._known)
        if values is None:
            values = np.arange(len(self._active)) * lanes
        return np.broadcast_to(np.asarray(values, dtype=np.int64), len(self._active)) * size


def _places(extents: dict[str, int], threads: np.ndarray) -> dict[str, np.ndarray]:
    """By tag, the indices of threads."""
    places = {}
    for tag in ("threadIdx.x", "threadIdx.y", "threadIdx.z"):
        extent = extents.get(tag, 1)
        places[tag] = threads % extent
        threads = threads // extent
    return places


def _lanes(expr: tirx.Expr) -> int:
    dtype = getattr(getattr(expr, "ty", None), "dtype", None)
    return int(tvm.DataType(str(dtype)).lanes) if dtype is not None else 1


def _loads_and_branches(value: tirx.Expr) -> Iterator[Any]:
    """Loads, and branches of which one side only is computed, without what is in these."""
    found: list[Any] = []

    def look(node: Any) -> Any:
        if is_conditional(node):
            found.append(node)
            return tvm_ffi.WalkResult.SKIP
        if isinstance(node, tvm.ir.TensorLoad):
            found.append(node)
        return None

    tvm_ffi.structural_walk(value, look, order="pre")
    yield from found


def _distinct(
    first: np.ndarray, active: np.ndarray, width: int, step: int
) -> tuple[np.ndarray, np.ndarray]:
    """The pieces of ``step`` bytes that each warp touches, sorted, and how many these are.

    Where a piece stands again, or a thread is not active, there is -1.
    """
    offsets = np.arange(0, max(width, 1), min(step, max(width, 1)))
    # The last byte is in a piece of its own where the first is not at the start of one.
    offsets = np.append(offsets, max(width, 1) - 1)
    pieces = (first[:, :, None] + offsets) // step
    pieces = np.where(active[:, :, None], pieces, -1).reshape(len(first), -1)
    pieces.sort(axis=1)
    again = np.zeros_like(pieces, dtype=bool)
    again[:, 1:] = pieces[:, 1:] == pieces[:, :-1]
    pieces = np.where(again, -1, pieces)
    return pieces, (pieces >= 0).sum(axis=1)


def _bank_cycles(first: np.ndarray, active: np.ndarray, width: int) -> np.ndarray:
    """Cycles in which the banks serve each warp: words of the bank that has most of them."""
    words, _ = _distinct(first, active, width, BANK_BYTES)
    rows, columns = np.nonzero(words >= 0)
    places = rows * BANKS + words[rows, columns] % BANKS
    return np.bincount(places, minlength=len(words) * BANKS).reshape(-1, BANKS).max(axis=1)
