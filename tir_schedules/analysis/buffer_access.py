"""How a block walks through its buffers: loop extents, strides of accesses, flat addresses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorRegion
from tvm.sym import detect_linear_equation
from tvm.tirx.buffer import buffer_data

from tvm_ext.tir_schedules.statements import in_root_block, sequence

# On a kernel: which of its parameters are constants in every call.
CONSTANTS_ATTRIBUTE = "tvm_ext.constant_parameters"


@dataclass
class BlockAccess:
    """Loops of a block and, for each, the stride of every buffer that the block touches.

    Attributes
    ----------
    extents : list[int]
        Trip count of each loop, outermost first.
    is_reduction : list[bool]
        Whether the loop reduces.
    write_strides : list[int | None]
        Elements by which the written address moves when the loop advances; None when that is not
        one number.
    read_strides : list[list[int | None]]
        The same for each buffer read, without the accumulator.
    element_bytes : int
        Bytes of the widest element read.
    constant_reads : list[bool]
        Whether each buffer read is the same in every call (weights), so that it can be packed.
    """

    block: s_tir.schedule.SBlockRV
    name: str
    extents: list[int]
    is_reduction: list[bool]
    write_strides: list[int | None]
    read_strides: list[list[int | None]] = field(default_factory=list)
    element_bytes: int = 4
    constant_reads: list[bool] = field(default_factory=list)

    @property
    def spatial(self) -> list[int]:
        """Positions of the loops that do not reduce."""
        return [i for i, reduces in enumerate(self.is_reduction) if not reduces]

    @property
    def reduction(self) -> list[int]:
        """Positions of the loops that reduce."""
        return [i for i, reduces in enumerate(self.is_reduction) if reduces]

    def trip_count(self) -> int:
        """How often the body runs."""
        count = 1
        for extent in self.extents:
            count *= extent
        return count


def static_extent(value: object) -> int | None:
    """The integer behind a shape or loop extent, None when it is symbolic."""
    if isinstance(value, int):
        return value
    return int(value.value) if isinstance(value, tirx.IntImm) else None


@dataclass(frozen=True)
class LoopAxis:
    """A loop from 0 to ``extent``, a number or an expression of what is known in the run only.

    ``position``: of its variable among those of a block; -1 where that is of no interest.
    """

    var: tirx.Var
    extent: Any
    position: int = -1

    @property
    def length(self) -> int | None:
        """The extent where it is a number."""
        return static_extent(self.extent)

    @property
    def is_symbolic(self) -> bool:
        """Whether the extent is known in the run only."""
        return self.length is None

    @property
    def runs_once(self) -> bool:
        """Whether the loop is known to have at most one iteration."""
        return self.length is not None and self.length <= 1


# By how much an index moves with loops.


def linear_form(expr: tvm.ir.Expr, variables: Sequence[tirx.Var]) -> tuple[list[Any], Any] | None:
    """By how much an expression moves with each variable, and the rest; None if not linearly."""
    found = list(detect_linear_equation(expr, list(variables)))
    return (found[:-1], found[-1]) if len(found) == len(variables) + 1 else None


def linear_numbers(
    expr: tvm.ir.Expr, variables: Sequence[tirx.Var]
) -> tuple[list[int], int] | None:
    """The same where all of them are numbers."""
    found = linear_form(expr, variables)
    numbers = [static_extent(number) for number in (*found[0], found[1])] if found else []
    known = [number for number in numbers if number is not None]
    return (known[:-1], known[-1]) if known and len(known) == len(numbers) else None


def slope(expr: tvm.ir.Expr, var: tirx.Var) -> int | None:
    """By how much an index moves with a variable; None when that is not one number."""
    found = linear_form(expr, [var])
    return static_extent(found[0][0]) if found else None


def stride(expr: tvm.ir.Expr, var: tirx.Var) -> Any:
    """By how much an index moves with a variable: an int, an expression, or None."""
    found = linear_form(expr, [var])
    if found is None:
        return None
    known = static_extent(found[0][0])
    return found[0][0] if known is None else known


def buffer_bytes(buffer: tirx.Buffer) -> int:
    """Bytes of a buffer; a symbolic extent counts as one."""
    elements = math.prod(static_extent(size) or 1 for size in buffer.shape)
    return elements * tvm.DataType(str(buffer.dtype)).bits // 8


def element_bytes(buffer: tirx.Buffer) -> int:
    """Bytes of one element of a buffer; types below a byte count as one."""
    return max(1, tvm.DataType(str(buffer.dtype)).bits // 8)


def operands_of(stmt: s_tir.SBlock) -> list[TensorRegion]:
    """The buffers that a block reads, without the accumulator, which it writes as well."""
    return [read for read in stmt.reads if not read.source.same_as(stmt.writes[0].source)]


def read_position(stmt: s_tir.SBlock, buffer: tirx.Buffer) -> int:
    """Position of ``buffer`` among all that a block reads, the accumulator included."""
    return next(i for i, read in enumerate(stmt.reads) if read.source.same_as(buffer))


def access_of(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> BlockAccess | None:
    """The access of a block whose loops are one to one with its iteration variables.

    None when an extent is symbolic, an iteration is neither data-parallel nor a commutative
    reduction, or the block does not write exactly one buffer.
    """
    stmt = sch.get(block)
    loops = sch.get_loops(block)
    iter_vars = list(stmt.iter_vars)
    if not loops and all(static_extent(v.dom.extent) == 1 for v in iter_vars):
        # A scalar is computed by an iteration variable without a loop.
        iter_vars = []
    if len(loops) != len(iter_vars) or len(stmt.writes) != 1:
        return None
    extents = [static_extent(sch.get(loop).extent) for loop in loops]
    kinds = [iter_var.iter_type for iter_var in iter_vars]
    known = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)
    if None in extents or any(kind not in known for kind in kinds):
        return None
    variables = [iter_var.var for iter_var in iter_vars]
    written = stmt.writes[0]
    reads = operands_of(stmt)
    return BlockAccess(
        block=block,
        name=str(stmt.name_hint),
        extents=[e for e in extents if e is not None],
        is_reduction=[kind == tirx.IterVar.CommReduce for kind in kinds],
        write_strides=_strides(written, variables),
        read_strides=[_strides(read, variables) for read in reads],
        element_bytes=max((element_bytes(read.source) for read in reads), default=4),
        constant_reads=[
            constant_parameter(sch.mod["main"], read.source) is not None for read in reads
        ],
    )


def constant_parameter(func: tirx.PrimFunc, buffer: tirx.Buffer) -> int | None:
    """Position of ``buffer`` among the kernel's parameters if it is the same in every call."""
    constants = func.attrs.get(CONSTANTS_ATTRIBUTE) if func.attrs is not None else None
    for position in constants or ():
        if func.params[int(position)].same_as(buffer):
            return int(position)
    return None


def _strides(region: TensorRegion, variables: list[tirx.Var]) -> list[int | None]:
    address = _flat_address(region)
    if address is None:
        return [None] * len(variables)
    return [slope(address, variable) for variable in variables]


def _flat_address(region: TensorRegion) -> tvm.ir.Expr | None:
    sizes = [*region.source.shape, *(dim.extent for dim in region.region)]
    if any(static_extent(size) is None for size in sizes):
        return None
    if any(static_extent(dim.extent) != 1 for dim in region.region):
        return None
    return flat_address(region.source, [dim.min for dim in region.region])


# Buffers as arrays of one dimension, so that an index is an address.


def nodes(root: Any, *kinds: type) -> list[Any]:
    """All nodes of some kinds below an expression, a shared one as often as it is used."""
    found: list[Any] = []
    tvm_ffi.structural_walk(root, (kinds, found.append), order="pre")
    return found


def depends(expr: tvm.ir.Expr, *variables: tirx.Var) -> bool:
    """Whether one of ``variables`` is in ``expr``."""
    return any(var.same_as(used) for used in nodes(expr, tvm.ir.Var) for var in variables)


class FlatViews:
    """The flat views of a kernel's buffers.

    Loops over several dimensions can then be one loop, without a division to tell them apart.

    Parameters
    ----------
    symbolic_sizes : bool
        Whether buffers of sizes that are known in the run only have views as well.
    """

    def __init__(self, symbolic_sizes: bool = False) -> None:
        self.symbolic_sizes = symbolic_sizes
        self._pairs: list[tuple[Any, Any]] = []

    def of(self, buffer: tirx.Buffer) -> tirx.Buffer:
        """The flat view of ``buffer``, the same one at every call."""
        for original, flat in self._pairs:
            if original.same_as(buffer):
                return flat
        flat = tirx.decl_buffer((elements(buffer),), str(buffer.dtype), buffer.name)
        self._pairs.append((buffer, flat))
        return flat

    def may_share_memory(self, store: tirx.BufferStore, func: tirx.PrimFunc) -> bool:
        """Whether TVM may put the result of an assignment in the place of what it reads.

        It does so with arrays that live inside of a kernel. An element must then not be computed
        twice: the second time it would be computed from the result.
        """
        inside = self.allocated(func)
        loads = nodes(store.value, tvm.ir.TensorLoad)
        return among(store.buffer, inside) and any(among(load.source, inside) for load in loads)

    def declarations(self, func: tirx.PrimFunc) -> list[tirx.Stmt]:
        """Statements that make the views of parameters known; the others are to be allocated."""
        return [
            tirx.DeclBuffer(flat, data=buffer_data(original))
            for original, flat in self._pairs
            if among(original, func.params)
        ]

    def allocated(self, func: tirx.PrimFunc) -> list[tirx.Buffer]:
        """The views that are not of parameters."""
        return [flat for original, flat in self._pairs if not among(original, func.params)]

    def kernel(
        self, func: tirx.PrimFunc, code: Sequence[tirx.Stmt], arrays: Sequence[tirx.Buffer] = ()
    ) -> tirx.PrimFunc:
        """``func`` with other statements, which use the views, and ``arrays`` of their own."""
        nothing = [tirx.Evaluate(tirx.const(0, "int32"))]
        body = sequence([*self.declarations(func), *(code or nothing)])
        used = [store.buffer for store in nodes(body, tirx.BufferStore)]
        inside = [view for view in self.allocated(func) if among(view, used)]
        return func.with_body(in_root_block(body, [*inside, *arrays]))


def is_load(value: Any, buffer: tirx.Buffer) -> bool:
    """Whether ``value`` is an element of ``buffer``."""
    return isinstance(value, tvm.ir.TensorLoad) and bool(value.source.same_as(buffer))


def among(buffer: tirx.Buffer, buffers: Sequence[Any]) -> bool:
    """Whether ``buffer`` is one of ``buffers``."""
    return any(buffer.same_as(other) for other in buffers)


def flattened(store: tirx.BufferStore, views: FlatViews) -> tirx.BufferStore | None:
    """The same assignment to and from flat views; None when a buffer's layout is not plain."""
    buffers = [store.buffer, *(load.source for load in nodes(store, tvm.ir.TensorLoad))]
    if not all(is_compact(buffer, views.symbolic_sizes) for buffer in buffers):
        return None

    def flat_load(load: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        return tirx.BufferLoad(views.of(load.source), [flat_address(load.source, load.indices)])

    address = flat_address(store.buffer, store.indices)
    value, address = (
        tvm_ffi.structural_map(expr, (tvm.ir.TensorLoad, flat_load))
        for expr in (store.value, address)
    )
    return tirx.BufferStore(views.of(store.buffer), value, [address])


def with_flat_memory(store: tirx.BufferStore, views: FlatViews) -> tirx.BufferStore:
    """The same assignment with flat views of all buffers but those in registers.

    Raises
    ------
    ValueError
        A buffer's layout is not plain.
    """

    def in_memory(buffer: tirx.Buffer, indices: Sequence[tvm.ir.Expr]) -> tuple[Any, list[Any]]:
        zero = tirx.const(0, str(buffer.dtype))
        found = flattened(tirx.BufferStore(buffer, zero, list(indices)), views)
        if found is None:
            raise ValueError(f"buffer {buffer.name} is not laid out row by row")
        return found.buffer, list(found.indices)

    def flat(load: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        if str(load.source.scope()) != "global":
            return load
        return tirx.BufferLoad(*in_memory(load.source, load.indices))

    value = tvm_ffi.structural_map(store.value, (tvm.ir.TensorLoad, flat))
    if str(store.buffer.scope()) != "global":
        return tirx.BufferStore(store.buffer, value, store.indices)
    buffer, indices = in_memory(store.buffer, store.indices)
    return tirx.BufferStore(buffer, value, indices)


def elements(buffer: tirx.Buffer) -> Any:
    """How many elements a buffer has: an int, or an expression of what is known in the run only."""
    known = [static_extent(extent) for extent in buffer.shape]
    rest = [extent for extent, n in zip(buffer.shape, known, strict=True) if n is None]
    count = math.prod(n for n in known if n is not None)
    return math.prod([extent.astype("int64") for extent in rest], start=count) if rest else count


def is_compact(buffer: tirx.Buffer, symbolic_sizes: bool = False) -> bool:
    """Whether a buffer has known sizes, or any, and lies in memory row by row, without gaps."""
    known = symbolic_sizes or all(static_extent(size) is not None for size in buffer.shape)
    return known and not buffer.strides and static_extent(buffer.elem_offset) in (None, 0)


def flat_address(
    buffer: tirx.Buffer, indices: Sequence[tvm.ir.Expr], dtype: str = ""
) -> tvm.ir.Expr:
    """Position of an element in the buffer's memory, counted in elements.

    Its type is ``dtype``, or else that of the indices, int64 if they have several.
    """
    # A cast hides from the solver that an index is linear, so the loops' own type is kept.
    dtypes = {str(index.ty) for index in indices}
    dtype = dtype or (dtypes.pop() if len(dtypes) == 1 else "int64")
    flat: Any = tirx.const(0, dtype)
    for size, index in zip(buffer.shape, indices, strict=True):
        known = static_extent(size)
        count = size.astype(dtype) if known is None else tirx.const(known, dtype)
        flat = flat * count + index.astype(dtype)
    return flat
