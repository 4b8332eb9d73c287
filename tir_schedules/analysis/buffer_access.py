"""A kernel's blocks and how each walks through its buffers: loops, strides, flat addresses."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeGuard

import tvm
from tvm import s_tir, tirx
from tvm.ir import TensorRegion
from tvm.s_tir.schedule import SBlockRV
from tvm.sym import detect_linear_equation

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.tvm_compat import walk

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

    block: SBlockRV
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
        return math.prod(self.extents)


def static_extent(value: object) -> int | None:
    """The integer behind a shape or loop extent, None when it is symbolic."""
    if isinstance(value, int):
        return value
    return int(value.value) if isinstance(value, tirx.IntImm) else None


def static_product(values: Iterable[object]) -> int | None:
    """The product of shapes or loop extents, None when one of them is symbolic."""
    found = [static_extent(value) for value in values]
    known = [value for value in found if value is not None]
    return math.prod(known) if len(known) == len(found) else None


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
    """Bytes of one element of a buffer, all lanes of a vector; types below a byte count as one."""
    dtype = tvm.DataType(str(buffer.dtype))
    return max(1, dtype.bits * dtype.lanes // 8)


def operands_of(stmt: s_tir.SBlock) -> list[TensorRegion]:
    """The buffers that a block reads, without the accumulator, which it writes as well."""
    return [read for read in stmt.reads if not read.source.same_as(stmt.writes[0].source)]


def read_position(stmt: s_tir.SBlock, buffer: tirx.Buffer) -> int:
    """Position of ``buffer`` among all that a block reads, the accumulator included."""
    return next(i for i, read in enumerate(stmt.reads) if read.source.same_as(buffer))


_BYTE_VALUES = 256


def access_of(sch: s_tir.Schedule, block: SBlockRV) -> BlockAccess | None:
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
    if len(region.region) == 1 and is_looked_up(region.source, region.region[0].min):
        return [0] * len(variables)
    address = _flat_address(region)
    if address is None:
        return [None] * len(variables)
    return [slope(address, variable) for variable in variables]


def is_looked_up(buffer: tirx.Buffer, place: tvm.ir.Expr) -> bool:
    """Whether ``place``, a byte that is loaded or computed, selects one of 256 bytes.

    Such a table stays in registers: it counts as an array that moves with no loop.
    """
    size = static_extent(buffer.shape[0]) if len(buffer.shape) == 1 else None
    if size != _BYTE_VALUES or element_bytes(buffer) != 1 or not isinstance(place, tirx.Cast):
        return False
    return tvm.DataType(str(place.value.ty)).bits == 8


def _flat_address(region: TensorRegion) -> tvm.ir.Expr | None:
    sizes = [*region.source.shape, *(dim.extent for dim in region.region)]
    if any(static_extent(size) is None for size in sizes):
        return None
    if any(static_extent(dim.extent) != 1 for dim in region.region):
        return None
    return flat_address(region.source, [dim.min for dim in region.region])


# What expressions hold.


def nodes(root: Any, *kinds: type) -> list[Any]:
    """All nodes of some kinds below an expression, a shared one as often as it is used."""
    if _is_leaf(root):
        return [root] if isinstance(root, kinds) else []
    found: list[Any] = []
    walk(root, kinds, found.append)
    return found


def _is_leaf(root: Any) -> bool:
    """Whether nothing is below ``root``, as of most that is asked about."""
    if isinstance(root, tvm.ir.Var):
        return isinstance(root.ty, tvm.ir.PrimType)
    return isinstance(root, (tirx.IntImm, tirx.FloatImm))


def depends(expr: tvm.ir.Expr, *variables: tirx.Var) -> bool:
    """Whether one of ``variables`` is in ``expr``."""
    return any(var.same_as(used) for used in nodes(expr, tvm.ir.Var) for var in variables)


_IF_THEN_ELSE = tvm.ir.Op.get("prim.if_then_else")


def is_conditional(node: tvm.ir.Expr) -> TypeGuard[tvm.ir.Call]:
    """Whether an expression is a branch, of which one side only is computed."""
    return isinstance(node, tvm.ir.Call) and bool(node.op.same_as(_IF_THEN_ELSE))


def conjuncts(condition: tvm.ir.Expr) -> list[tvm.ir.Expr]:
    """The conditions that all have to hold for ``condition`` to hold."""
    if isinstance(condition, tirx.And):
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    return [condition]


def is_load(value: Any, buffer: tirx.Buffer) -> bool:
    """Whether ``value`` is an element of ``buffer``."""
    return isinstance(value, tvm.ir.TensorLoad) and bool(value.source.same_as(buffer))


def among(buffer: tirx.Buffer, buffers: Sequence[Any]) -> bool:
    """Whether ``buffer`` is one of ``buffers``."""
    return any(buffer.same_as(other) for other in buffers)


# Buffers as arrays of one dimension, so that an index is an address.


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


# The blocks of a kernel.


# Nodes of an expression beyond which nothing more is inlined into it. Kernels of real networks
# stay far below; the time for code generation grows with the square.
MAX_NODES = 1000


def schedule_of(func: tirx.PrimFunc) -> s_tir.Schedule:
    """A schedule of ``func`` in which nothing is done yet.

    Template after template is asked for a kernel, and begins with one: TVM looks at all of the
    kernel to make it, and at nothing to copy it. A step that it refuses says no more than that:
    with its reason TVM prints the whole kernel, for each template that tries the step.
    """
    return _untouched(func).copy()


@lru_cache(maxsize=3)
def _untouched(func: tirx.PrimFunc) -> s_tir.Schedule:
    return s_tir.Schedule(func, error_render_level="none")


def kernel_blocks(sch: s_tir.Schedule) -> list[SBlockRV]:
    """The blocks of the kernel, in program order."""
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def reduction_blocks(sch: s_tir.Schedule) -> list[SBlockRV]:
    """Those of the kernel's blocks that are not data-parallel."""
    return [block for block in kernel_blocks(sch) if not is_data_parallel(sch, block)]


def writer_of(sch: s_tir.Schedule, block: SBlockRV, buffer: tirx.Buffer) -> SBlockRV | None:
    """The block that writes what ``block`` reads as ``buffer``; None for a parameter."""
    producers = sch.get_producers(block)
    return next((p for p in producers if sch.get(p).writes[0].source.same_as(buffer)), None)


def same_block(sch: s_tir.Schedule, block: SBlockRV, other: SBlockRV) -> bool:
    """Whether two handles are of one block."""
    return bool(sch.get(block).same_as(sch.get(other)))


def is_data_parallel(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether no iteration of the block depends on another one."""
    return runs_in_any_order(sch.get(block))


def runs_in_any_order(stmt: s_tir.SBlock) -> bool:
    """The same of a block as a statement."""
    return all(v.iter_type == tirx.IterVar.DataPar for v in stmt.iter_vars)


def scans(stmt: s_tir.SBlock) -> bool:
    """Whether a loop of a block is neither data-parallel nor a commutative reduction."""
    known = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)
    return any(v.iter_type not in known for v in stmt.iter_vars)


def count_calls(expr: Any) -> int:
    """Function calls (exp, if_then_else, ...) below a statement or expression."""
    return len(nodes(expr, tvm.ir.Call))


def would_bloat(sch: s_tir.Schedule, block: SBlockRV, consumer: SBlockRV) -> bool:
    """Whether the consumer's expression would grow beyond ``MAX_NODES``.

    A chain of blocks that use their input twice (x * sigmoid(x)) doubles with each one inlined.
    """
    body = sch.get(consumer).body
    produced = sch.get(block).writes[0].source
    uses = sum(load.source.same_as(produced) for load in nodes(body, tvm.ir.TensorLoad))
    added = uses * _size(sch.get(block).body)
    return added + _size(body) > MAX_NODES


def _size(expr: tvm.ir.Expr | tirx.Stmt) -> int:
    return len(nodes(expr, tvm.ir.Expr))


def only_reduction(sch: s_tir.Schedule) -> SBlockRV:
    """The kernel's only reduction. Raises NotApplicable where there is none, or several."""
    reductions = reduction_blocks(sch)
    if len(reductions) != 1:
        raise NotApplicable(f"the kernel has {len(reductions)} reductions, not one")
    return reductions[0]


def access_of_reduction(sch: s_tir.Schedule) -> BlockAccess:
    """What the only reduction reads and writes. Raises NotApplicable where a block is not plain."""
    anchor = only_reduction(sch)
    access = access_of(sch, anchor)
    if access is None or any(access_of(sch, block) is None for block in kernel_blocks(sch)):
        raise NotApplicable("a loop has a symbolic extent, scans, or writes several buffers")
    return access
