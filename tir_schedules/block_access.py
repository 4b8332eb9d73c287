"""How a block walks through its buffers: kinds and extents of its loops, strides of its reads."""

import math
from dataclasses import dataclass, field

import tvm
from tvm import s_tir, tirx
from tvm.ir import TensorRegion
from tvm.sym import detect_linear_equation

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
    strides: list[int | None] = []
    for variable in variables:
        # [coefficient, rest], or nothing when the address is not linear in the variable.
        linear = detect_linear_equation(address, [variable])
        strides.append(static_extent(linear[0]) if len(linear) == 2 else None)
    return strides


def _flat_address(region: TensorRegion) -> tvm.ir.Expr | None:
    # A cast hides from the solver that an index is linear, so the loops' own type is kept.
    dtypes = {str(dim.min.ty) for dim in region.region}
    dtype = dtypes.pop() if len(dtypes) == 1 else "int64"
    address: tvm.ir.Expr = tirx.const(0, dtype)
    for size, dim in zip(region.source.shape, region.region, strict=True):
        if static_extent(size) is None or static_extent(dim.extent) != 1:
            return None
        address = address * tirx.const(static_extent(size), dtype) + dim.min.astype(dtype)
    return address
