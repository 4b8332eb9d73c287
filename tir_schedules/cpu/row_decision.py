"""How the rows of a kernel run: along or across, passes, lengths, by default and as options."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_equal

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    buffer_bytes,
    count_calls,
    nodes,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.row_kernel import (
    RowBlock,
    RowKernel,
    Store,
    buffer_key,
    dense_suffix,
    is_dense,
    is_reduction_only,
    sized,
    substituted,
)
from tvm_ext.tir_schedules.analysis.row_reader import hoisted
from tvm_ext.tir_schedules.cpu.parallel_vectorize import (
    CYCLES_PER_CALL,
    distinct,
    pick_threads,
    worth_threads,
)
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Passes over a row: which blocks share one, what they accumulate in, where the row waits.


Pass = tuple[RowBlock | None, RowBlock]


def passes_of(kernel: RowKernel) -> list[Pass]:
    """The blocks, each with the one before it when both can share a pass over the row.

    That is so when a reduction reads exactly the element that was just computed: the exponentials
    of a softmax and their sum.
    """
    passes: list[Pass] = []
    for block in kernel.blocks:
        before = _shared(passes[-1][1], block) if passes and passes[-1][0] is None else None
        if before is not None:
            passes.pop()
        passes.append((before, block))
    return passes


def _shared(before: RowBlock, block: RowBlock) -> RowBlock | None:
    """``before`` in the columns of ``block``; None when they cannot share a pass."""
    extents = [axis.extent for axis in block.columns]
    others = [axis.extent for axis in before.columns]
    if before.starts or not block.starts or not structural_equal(others, extents):
        return None
    if not extents or len(before.stores) != 1:
        return None
    pairs = zip(before.columns, block.columns, strict=True)
    values: dict[int, tvm.ir.Expr] = {buffer_key(old.var): new.var for old, new in pairs}
    (store,) = before.stores
    indices = tuple(substituted(index, values) for index in store.indices)
    key = buffer_key(store.buffer)
    loads = [load for s in block.stores for load in nodes(s.value, tvm.ir.TensorLoad)]
    reads = [list(load.indices) for load in loads if buffer_key(load.source) == key]
    if not reads or not all(structural_equal(read, list(indices)) for read in reads):
        return None
    moved = Store(store.buffer, indices, substituted(store.value, values))
    return RowBlock(block.columns, (moved,), ())


def partial_size(length: Any, lanes: int, registers: int) -> tuple[int, int]:
    """Lanes of a vector and of all partial results: powers of two, no more than the row has."""
    if not isinstance(length, int):
        return lanes, registers * lanes
    lanes = min(lanes, 1 << (length - 1).bit_length())
    while registers > 1 and registers * lanes > length:
        registers //= 2
    return lanes, registers * lanes


def row_in_output(kernel: RowKernel) -> tuple[tvm.ir.Var, tvm.ir.Var] | None:
    """A row that the last block only reads where it writes, and the output, where it can wait."""
    last = kernel.blocks[-1]
    store = last.stores[0]
    out = buffer_key(store.buffer)
    if last.starts or out in kernel.inner or not last.columns:
        return None
    writers = [s for block in kernel.blocks for s in block.stores]
    if sum(buffer_key(s.buffer) == out for s in writers) > 1:
        return None
    if any(buffer_key(load.source) == out for load in kernel.loads()):
        return None
    for load in nodes(store.value, tvm.ir.TensorLoad):
        if _fits_output(kernel, load, store):
            return load.source, store.buffer
    return None


def _fits_output(kernel: RowKernel, load: tvm.ir.TensorLoad, store: Store) -> bool:
    buffer = load.source
    key = buffer_key(buffer)
    reads = [n for n in nodes(store.value, tvm.ir.TensorLoad) if buffer_key(n.source) == key]
    return (
        key in kernel.inner
        and str(buffer.dtype) == str(store.buffer.dtype)
        and structural_equal(list(buffer.shape), list(store.buffer.shape))
        and all(structural_equal(list(n.indices), list(store.indices)) for n in reads)
    )


# Into which lengths a number of rows, or of elements of a row, is cut.


# Start, how many, and width; the first two may be expressions of what a run decides.
Stretch = tuple[Any, Any, int]


def stretches(length: int, widths: Sequence[int]) -> list[tuple[int, int, int]]:
    """(start, how many, width): the whole of ``length`` in parts of each width, and the rest."""
    found = []
    start = 0
    for width in widths:
        count = (length - start) // width
        if count:
            found.append((start, count, width))
            start += count * width
    if start < length:
        found.append((start, 1, length - start))
    return found


def narrower(lanes: int) -> list[int]:
    """Widths of vectors for a tail whose length is known in the run only, down to one element."""
    return list(dict.fromkeys([max(lanes // 4, 1), 1]))


def symbolic_stretches(length: Any, widths: Sequence[int], dtype: str) -> list[Stretch]:
    """``stretches`` of a length that may be known in the run only: the last width is then 1."""
    if isinstance(length, int):
        return list(stretches(length, widths))
    found: list[Stretch] = []
    whole, start = sized(length, dtype), 0
    for width in dict.fromkeys(widths):
        count = whole - start if width == 1 else tirx.truncdiv(whole - start, sized(width, dtype))
        found.append((start, count, width))
        start = count * width + start
    return found


def stretches_across(
    length: int, groups: int, lanes: int, registers: int, chunks: int
) -> list[tuple[int, int, int]]:
    """``stretches`` of neighbouring rows, a tile each, of a length that there is in ``groups``.

    They are as even as vectors allow: the last one is not to be a small rest. Where the tiles are
    what threads share, there are as many equal ones for each of the ``chunks``, and a rest.
    """
    vectors = -(-length // lanes)
    tiles = -(-vectors // registers)
    if groups < chunks and length // lanes >= chunks:
        tiles = -(-tiles // chunks) * chunks
        return stretches(length, [lanes * max(1, length // lanes // tiles)])
    return stretches(length, [lanes * -(-vectors // tiles)])


# Which ways to run the rows of a kernel are worth trying, and come to different loops.


# Accumulators of a row, and rows at once; more than so many together do not stay in registers.
_REGISTERS = (1, 2, 4, 8)
_TOGETHER = (1, 2, 4)
_MOST_TOGETHER = 16

# Vectors of neighbouring rows; more than the registers hold wait in cache, for reductions only.
_VECTORS = (1, 2, 4, 8)
_VECTORS_IN_CACHE = (32, 128)


def ways(kernel: RowKernel, lanes: int) -> list[int]:
    """1 for running across the rows, 0 for running along them, where vectors are whole enough.

    Rows that are gathered must be short: each element of a vector is another line of the cache.
    """
    if kernel.count == 1:
        return [0]
    many = kernel.count >= lanes // 2
    if _is_dense_along(kernel):
        return [0, 1] if many and kernel.length <= 2 * lanes else [0]
    if is_dense(kernel, kernel.rows, kernel.blocks):
        return [1] if kernel.count >= lanes or kernel.length < lanes else [0, 1]
    return [0, 1] if many and kernel.length >= lanes // 2 else []


class AcrossOptions:
    """For tiles of neighbouring rows; ``chunks`` is what the default heuristic hands to threads."""

    def __init__(self, kernel: RowKernel, lanes: int, chunks: int) -> None:
        self.kernel = kernel
        self.lanes = lanes
        self.chunks = chunks

    def registers(self, default: int, most: int) -> Iterator[int]:
        """Vectors of a tile, up to ``most``."""
        wide = _VECTORS_IN_CACHE if is_reduction_only(self.kernel) else ()
        fitting = (n for n in (*_VECTORS, *wide) if n <= most)
        return distinct(fitting, default, lambda n: tuple(self._tiles(n, self.chunks)))

    def shared(self, registers: int, chunks: int) -> int:
        """How many groups of rows, or tiles, threads can share."""
        groups, _ = self._rows
        if groups >= chunks:
            return groups
        _, count, _ = self._tiles(registers, chunks)[0]
        return groups * count

    def _tiles(self, registers: int, chunks: int) -> list[tuple[int, int, int]]:
        groups, length = self._rows
        return stretches_across(length, groups, self.lanes, registers, chunks)

    @cached_property
    def _rows(self) -> tuple[int, int]:
        """Groups of rows, and rows of a group, which lie side by side."""
        first = dense_suffix(self.kernel, self.kernel.rows, self.kernel.blocks)
        extents = [axis.extent for axis in self.kernel.rows]
        return math.prod(extents[:first]), math.prod(extents[first:])


class AlongOptions:
    """For vectors of neighbours in a row."""

    def __init__(self, kernel: RowKernel, lanes: int) -> None:
        self.kernel = kernel
        self.lanes = lanes

    def registers(self, default: int) -> Iterator[int]:
        """Accumulators of a row."""

        def sizes(registers: int) -> tuple[int, ...]:
            return tuple(partial_size(n, self.lanes, registers)[1] for n in self._lengths)

        return distinct(_REGISTERS, default, sizes)

    def together(self, registers: int, default: int) -> Iterator[int]:
        """Rows at once, each with so many accumulators."""
        fitting = (n for n in _TOGETHER if n * registers <= _MOST_TOGETHER)
        return distinct(fitting, default, lambda n: tuple(self._groups(n)))

    def shared(self, together: int) -> int:
        """How many groups of rows threads can share; the tail is not handed to them."""
        _, count, _ = self._groups(together)[0]
        return count

    def _groups(self, together: int) -> list[tuple[int, int, int]]:
        return stretches(self.kernel.count, [together, 1])

    def in_output(self) -> Iterator[int]:
        """0 for a buffer of its own, where the row that waits fits into the output as well."""
        if row_in_output(self._written) is not None:
            yield 0

    @cached_property
    def _written(self) -> RowKernel:
        """The kernel as it is written: with blocks for what a row has in common."""
        return hoisted(self.kernel)

    @cached_property
    def _lengths(self) -> list[int]:
        """What is accumulated along, for each reduction that has a pass of its own."""
        reducing = [block for before, block in passes_of(self._written) if before is None]
        return [self._inner_length(block) for block in reducing if block.starts]

    def _inner_length(self, block: RowBlock) -> int:
        first = dense_suffix(self._written, block.columns, [block])
        return math.prod(axis.extent for axis in block.columns[first:])


# Accumulators of a reduction: latency of an add times the adds that start in a cycle.
ACCUMULATORS = 4

# From the lanes of a vector to one result.
CYCLES_PER_COMBINATION = 16.0

# Vectors of a row up to which it has one accumulator, and up to which two: more of them take longer
# to combine than they save. Rows that short are mostly latency, so as many run at once.
SHORT_ROW = 8
MIDDLE_ROW = 32

# Of a reduction whose rows lie side by side: longer stretches of memory at once.
WIDE_ACCUMULATORS = 8

# Vectors of partial results that stay in cache while a matrix that does not is read row by row.
STREAMED_VECTORS = 256


@dataclass(frozen=True)
class RowDecision:
    """How the rows of a kernel run.

    Attributes
    ----------
    across : bool
        Whether the lanes of a vector hold the same element of several rows; else they hold
        neighbours in one row.
    lanes : int
        Elements of a vector.
    registers : int
        Vectors that are in work at once: accumulators of a reduction, or rows over ``lanes``.
    chunks : int
        Parts in which the rows are handed to threads; 1 for a serial loop.
    together : int
        Rows along which the vectors run that are in work at once.
    in_output : bool
        Whether a row that is needed again waits in the output, where that fits, or in a buffer of
        its own.
    """

    across: bool
    lanes: int
    registers: int
    chunks: int
    together: int = 1
    in_output: bool = True


def decide_rows(
    kernel: RowKernel, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
) -> RowDecision:
    """The default heuristic.

    Asks whether to run ``across`` the rows, for ``registers`` and ``threads`` and, with these, for
    ``chunks``; along the rows also for ``together`` and ``in_output``.
    """
    lanes = _lanes(kernel, machine)
    if is_symbolic(kernel):
        return _symbolic_rows(kernel, lanes, machine)
    runs_across = _runs_across(kernel, lanes)
    across = bool(decisions.pick("across", ways(kernel, lanes), int(runs_across)))
    busy = worth_threads(machine, operations(kernel, across, lanes), lanes, _bytes_moved(kernel))
    if across:
        tiles = AcrossOptions(kernel, lanes, machine.cores if busy else 1)
        default = _registers_across(kernel, machine, lanes)
        most = max(default, machine.l2_bytes // (2 * _bytes_waiting(kernel) * lanes))
        registers = decisions.pick("registers", tiles.registers(default, most), default)
        chunks = _chunks(lambda n: tiles.shared(registers, n), busy, machine, decisions)
        return RowDecision(True, lanes, registers, chunks)
    row = AlongOptions(kernel, lanes)
    registers, together = _registers_along(kernel, lanes)
    registers = decisions.pick("registers", row.registers(registers), registers)
    together = decisions.pick("together", row.together(registers, together), together)
    in_output = bool(decisions.pick("in_output", row.in_output(), 1))
    chunks = _chunks(lambda _: row.shared(together), busy, machine, decisions)
    return RowDecision(False, lanes, registers, chunks, together, in_output)


def is_symbolic(kernel: RowKernel) -> bool:
    """Whether it is known in the run only how many rows there are, or how long they are."""
    lengths = [block.length for block in kernel.blocks]
    return not all(isinstance(count, int) for count in (kernel.count, *lengths))


def refuse_symbolic(kernel: RowKernel) -> None:
    """Raises NotApplicable for rows of symbolic number or length that have no loops of ours."""
    if not is_symbolic(kernel):
        return
    along = _is_dense_along(kernel)
    if not along and not is_dense(kernel, kernel.rows, kernel.blocks):
        raise NotApplicable("rows known in the run only lie neither in one piece nor side by side")
    waiting = row_in_output(kernel) if along else None
    for buffer in (store.buffer for block in kernel.blocks for store in block.stores):
        inside = kernel.inner.get(buffer_key(buffer), ())
        known = all(static_extent(buffer.shape[d]) is not None for d in inside)
        if not known and (waiting is None or not buffer.same_as(waiting[0])):
            raise NotApplicable("a row of a length known in the run only waits inside the kernel")


def _is_dense_along(kernel: RowKernel) -> bool:
    blocks = [block for block in kernel.blocks if block.columns]
    return all(is_dense(kernel, block.columns, [block]) for block in blocks)


def _symbolic_rows(kernel: RowKernel, lanes: int, machine: CpuDescription) -> RowDecision:
    """Along the rows where these are contiguous, else across them; on threads."""
    if not _is_dense_along(kernel):
        registers = _registers_across(kernel, machine, lanes)
        return RowDecision(True, lanes, registers, machine.cores)
    known = all(isinstance(block.length, int) for block in kernel.blocks)
    registers, together = _registers_along(kernel, lanes) if known else (ACCUMULATORS, 1)
    return RowDecision(False, lanes, registers, machine.cores, together)


def _chunks(
    shared: Callable[[int], int], busy: bool, machine: CpuDescription, decisions: Decisions
) -> int:
    """In how many parts rows are handed to threads: ``shared(parts)`` tiles of them."""
    cores = machine.cores
    if not pick_threads(decisions, machine, lambda: shared(cores), busy):
        return 1

    def outcome(parts: int) -> tuple[int, int]:
        count = shared(parts)
        return count, -(-count // min(parts, count))

    options = (n for n in distinct((2 * cores, 4 * cores), cores, outcome) if shared(cores) > 1)
    return decisions.pick("chunks", options, cores)


def operations(kernel: RowKernel, across: bool, lanes: int) -> float:
    """Work of the kernel in elements, with what calls and the end of each reduction take."""
    total = 0.0
    for block in kernel.blocks:
        calls = sum(count_calls(store.value) for store in block.stores)
        total += kernel.count * block.length * (1 + CYCLES_PER_CALL * calls)
        if block.starts and not across:
            total += kernel.count * len(block.stores) * CYCLES_PER_COMBINATION * lanes
    return total


def _bytes_moved(kernel: RowKernel) -> int:
    """Of the tensors that the kernel reads and writes."""
    stored = [store.buffer for block in kernel.blocks for store in block.stores]
    return _bytes_outside(kernel, [*stored, *(load.source for load in kernel.loads())])


def _lanes(kernel: RowKernel, machine: CpuDescription) -> int:
    """Elements of a vector of the widest type that is computed with; positions do not count."""
    dtypes = {str(load.source.dtype) for load in kernel.loads()}
    values = {dtype for dtype in dtypes if "float" in dtype} or dtypes
    return min((machine.vector_lanes(_stored(dtype)) for dtype in values), default=1)


def _stored(dtype: str) -> str:
    return "int8" if dtype == "bool" else dtype


def _runs_across(kernel: RowKernel, lanes: int) -> bool:
    if kernel.count == 1:
        return False
    if _is_dense_along(kernel):
        # A row that fills a small part of a vector is better off gathered with others.
        shortest = lanes // 2 if is_reduction_only(kernel) else lanes // 4
        return kernel.length <= shortest and kernel.count >= lanes
    return is_dense(kernel, kernel.rows, kernel.blocks) or kernel.length < lanes


def _registers_along(kernel: RowKernel, lanes: int) -> tuple[int, int]:
    """Accumulators of a row, and rows at once."""
    vectors = -(-kernel.length // lanes)
    if vectors <= SHORT_ROW:
        return 1, 4
    if vectors <= MIDDLE_ROW:
        return 2, 2
    return ACCUMULATORS, 1


def _registers_across(kernel: RowKernel, machine: CpuDescription, lanes: int) -> int:
    if not is_dense(kernel, kernel.rows, kernel.blocks):
        # Lanes that are gathered one by one do not gain from more of them.
        return 1
    if is_reduction_only(kernel):
        in_cache = is_symbolic(kernel) or _bytes_read(kernel) <= machine.l2_bytes
        if in_cache or len(kernel.blocks[0].stores) > 1:
            return WIDE_ACCUMULATORS
        share = -(-kernel.count // (lanes * machine.cores))
        return max(WIDE_ACCUMULATORS, min(share, STREAMED_VECTORS))
    # Rows that wait for a later block are to stay in L1.
    fitting = machine.l1d_bytes // (2 * _bytes_waiting(kernel) * lanes)
    return 1 << max(0, min(fitting, ACCUMULATORS).bit_length() - 1)


def _bytes_waiting(kernel: RowKernel) -> int:
    """What one row keeps for later blocks; 1 at least."""
    buffers = {buffer_key(s.buffer): s.buffer for k in kernel.blocks for s in k.stores}
    waiting = sum(
        math.prod(static_extent(buffer.shape[d]) or 1 for d in kernel.inner[key])
        * tvm.DataType(str(buffer.dtype)).bits
        // 8
        for key, buffer in buffers.items()
        if key in kernel.inner
    )
    return max(waiting, 1)


def _bytes_read(kernel: RowKernel) -> int:
    return _bytes_outside(kernel, [load.source for load in kernel.loads()])


def _bytes_outside(kernel: RowKernel, buffers: Sequence[tirx.Buffer]) -> int:
    """Of those of ``buffers`` that not only the kernel sees, each once."""
    found = {buffer_key(one): buffer_bytes(one) for one in buffers}
    return sum(nbytes for key, nbytes in found.items() if key not in kernel.inner)
