"""Matrix product and convolution: tiles in shared memory, multiplied by the tensor cores.

A block of threads computes one tile of results. The operands' tiles come into shared memory by
asynchronous copies, several steps ahead; each warp multiplies what it loads from there. The
finished tile goes through shared memory once more, so that bias, activation and residual are
applied where it is written in whole rows. Products of float32 are added up in registers, without
tensor cores.
"""

from dataclasses import dataclass, replace

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.cuda.products.constant_operands import (
    constant_operands,
    with_padded_constant,
)
from tvm_ext.tir_schedules.cuda.products.contraction_decision import (
    MAX_BATCH,
    WARP_TILES,
    Product,
    TileSizes,
    decide_tiles,
)
from tvm_ext.tir_schedules.cuda.products.following_kernels import schedule_following
from tvm_ext.tir_schedules.cuda.products.lane_order import OWN
from tvm_ext.tir_schedules.cuda.products.matrix_fragments import MatrixInstruction
from tvm_ext.tir_schedules.cuda.products.open_sizes import with_nominal_sizes
from tvm_ext.tir_schedules.cuda.products.operand_staging import (
    decide_staging,
    operands_of,
    stage_operand,
)
from tvm_ext.tir_schedules.cuda.products.product_axes import (
    ProductAxes,
    loads_of,
    product_axes,
)
from tvm_ext.tir_schedules.cuda.products.product_form import (
    ACCUMULATORS,
    access_of_reduction,
    as_product,
    only_reduction,
)
from tvm_ext.tir_schedules.cuda.products.register_product import (
    REGISTER_TILES,
    schedule_registers,
)
from tvm_ext.tir_schedules.cuda.products.split_reduction import schedule_total, split_reduction
from tvm_ext.tir_schedules.cuda.products.warp_product import schedule_warps
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.template import Machine, NotMine


@dataclass(frozen=True)
class Contraction:
    """Kernels with one sum of products of two operands.

    Attributes
    ----------
    tf32 : bool
        Whether products of float32 go to the tensor cores, which take 10 bits of mantissa, even
        where the machine's description does not say so.
    described : bool
        The loops that each matrix instruction stands for, in its place: what a machine without
        tensor cores can run.
    """

    tf32: bool = False
    described: bool = False
    name = "contraction"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``. Decisions: those of ``decide_tiles``."""
        if not isinstance(machine, GpuDescription):
            return NotMine("the target is not a GPU")
        nominal = with_nominal_sizes(func)
        if isinstance(nominal, NotMine):
            return nominal
        sch = s_tir.Schedule(nominal)
        found = self._found(sch, machine.tf32 or self.tf32)
        if isinstance(found, NotMine):
            return found
        tiles = decide_tiles(found.product, machine, decisions)
        if isinstance(tiles, NotMine):
            return tiles
        main = found.main
        if nominal is not func:
            sch = s_tir.Schedule(func)
            main = sch.get_sblock(found.name)
            if _open_steps(sch.get(main), found.axes):
                return NotMine("the number of steps is known in the run only")
            tiles = replace(tiles, splits=1, group=1)
        constants = constant_operands(sch.mod["main"], sch.get(main), found.axes)
        sch, main = as_product(sch, main, found.axes, found.instruction.accumulator)
        sch.pad_einsum(main, [1, tiles.rows, tiles.columns, tiles.depth * tiles.splits])
        sch, main = with_padded_constant(sch, main, constants)
        if nominal is func:
            operands = operands_of(sch, main)
            staged = decide_staging(operands, found.product, tiles, machine, decisions)
            for operand in (0, 1):
                if staged[operand]:
                    stage_operand(sch, main, operand)
        return self._scheduled(sch, main, found, tiles)

    def _found(self, sch: s_tir.Schedule, tf32: bool) -> "_Found | NotMine":
        """The kernel's product, if it is one that the template takes."""
        main = only_reduction(sch)
        if isinstance(main, NotMine):
            return main
        access = access_of_reduction(sch, main)
        if isinstance(access, NotMine):
            return access
        axes = product_axes(access, sch.get(main))
        if isinstance(axes, NotMine):
            return axes
        instruction = _instruction(sch.get(main), tf32)
        if isinstance(instruction, NotMine):
            return instruction
        product = Product(
            batch=axes.size(axes.batch),
            rows=axes.size(axes.rows),
            columns=axes.size(axes.columns),
            steps=axes.size(axes.steps),
            dtype=instruction.rate,
            element_bytes=access.element_bytes,
            depth=instruction.depth,
            warp_tiles=WARP_TILES if instruction.on_tensor_cores else REGISTER_TILES,
            own=0 if instruction.on_tensor_cores else OWN,
        )
        if min(product.rows, product.columns, product.steps) < 2 or product.batch > MAX_BATCH:
            return NotMine("it has a single row, column or step, or too many products")
        return _Found(main, access.name, axes, instruction, product)

    def _scheduled(
        self, sch: s_tir.Schedule, main: SBlockRV, found: "_Found", tiles: TileSizes
    ) -> s_tir.Schedule:
        """The kernel in tiles, and in two kernels where the reduction is split."""
        instruction, total = found.instruction, None
        if tiles.splits > 1:
            main, total = split_reduction(sch, main, tiles.splits)
        if instruction.on_tensor_cores:
            schedule_warps(sch, main, tiles, instruction, found.axes.depth_last, self.described)
        else:
            schedule_registers(sch, main, tiles, found.axes.depth_last, self.described)
        if total is not None:
            schedule_total(sch, total)
        schedule_following(sch)
        return sch


def _open_steps(block: s_tir.SBlock, axes: ProductAxes) -> bool:
    return any(static_extent(block.iter_vars[axis].dom.extent) is None for axis in axes.steps)


@dataclass(frozen=True)
class _Found:
    """The block of a product, what its loops are, and how it is computed."""

    main: SBlockRV
    name: str
    axes: ProductAxes
    instruction: MatrixInstruction
    product: Product


def _instruction(block: s_tir.SBlock, tf32: bool) -> MatrixInstruction | NotMine:
    """How the products that a block adds up are computed."""
    loads = loads_of(block)
    if not loads:
        return NotMine("it adds up something other than products of two operands")
    dtypes = {str(load.source.dtype) for load in loads}
    dtype = dtypes.pop()
    if dtypes or dtype not in ACCUMULATORS:
        return NotMine(f"there is no instruction for {', '.join(sorted({dtype, *dtypes}))}")
    accumulator, written = ACCUMULATORS[dtype], str(block.writes[0].source.dtype)
    if written not in (accumulator, dtype):
        return NotMine(f"it adds up products of {dtype} in {written}")
    if accumulator == "int32" and written != accumulator:
        return NotMine(f"it adds up products of {dtype} in {written}, which wraps around")
    return MatrixInstruction(dtype, accumulator, dtype != "float32" or tf32)
