"""The operands of a warpgroup contraction: matrices, or a convolution's image and filters.

A convolution's rows and steps are counted as its boxes bring them: with the pixels of a box
that are outside of the images, and with channels filled up to whole boxes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.matrix_instructions import WARPGROUP_INSTRUCTIONS, MatrixInstruction
from tvm_ext.tir_schedules.analysis.buffer_access import (
    among,
    constant_parameter,
    depends,
    element_bytes,
    is_compact,
    is_conditional,
    linear_numbers,
    nodes,
    operands_of,
    static_extent,
    writer_of,
)
from tvm_ext.tir_schedules.analysis.contraction import factors_of
from tvm_ext.tir_schedules.cuda.matmul.matmul_form import MatmulAxes
from tvm_ext.tir_schedules.cuda.warpgroup.tma import (
    ALIGNMENT,
    MAX_EXTENT,
    MAX_RANK,
    SWIZZLED_ROW_BYTES,
    OperandTensor,
    TapSteps,
    TensorMapDimension,
    encoded_map,
    operand_tensor,
)
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_instructions import ACROSS, ROWS
from tvm_ext.tir_schedules.packing import move_outermost
from tvm_ext.tir_schedules.statements import FlatViews, flattened

# A block that surrounds an array with zeros, as TMA copies do for places outside of a tensor.


@dataclass(frozen=True)
class Padding:
    """What a padded array holds.

    Attributes
    ----------
    source : tirx.Buffer
        The array that is padded.
    before : tuple[int, ...]
        Zeros before it along each dimension; fewer than none where it is cut.
    """

    source: tirx.Buffer
    before: tuple[int, ...]


def padding_of(block: s_tir.SBlock) -> Padding | None:
    """The padding that a block computes: zeros exactly where the source has no element."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not is_conditional(store.value):
        return None
    condition, load, otherwise = store.value.args
    variables = [iter_var.var for iter_var in block.iter_vars]
    if not isinstance(load, tvm.ir.TensorLoad) or not _is_zero(otherwise):
        return None
    if len(store.indices) != len(variables) or len(load.indices) != len(variables):
        return None
    if not all(i.same_as(var) for i, var in zip(store.indices, variables, strict=True)):
        return None
    simplified = Analyzer().simplify
    pairs = zip(load.indices, variables, strict=True)
    shifts = [static_extent(simplified(var - index)) for index, var in pairs]
    sizes = [static_extent(size) for size in load.source.shape]
    extents = [static_extent(iter_var.dom.extent) for iter_var in block.iter_vars]
    # Where the source has an element it must be read. Elsewhere it cannot be.
    analyzer, before = Analyzer(), []
    for var, shift, size, extent in zip(variables, shifts, sizes, extents, strict=True):
        if shift is None or size is None or extent is None:
            return None
        first, last = max(0, shift), min(extent, shift + size)
        analyzer.bind(var, tvm.ir.Range(first, max(last, first + 1)))
        before.append(shift)
    return Padding(load.source, tuple(before)) if analyzer.can_prove(condition) else None


def _is_zero(value: tvm.ir.Expr) -> bool:
    return isinstance(value, tirx.FloatImm | tirx.IntImm) and float(value.value) == 0.0


# Rows of a convolution's matmul in boxes that are rectangles of output pixels.
#
# TMA copies bring boxes of an image. So the rows of a warpgroup are pixels side by side in each
# of an image's dimensions, and of neighbouring images where these are small, not pixels in the
# order in which they lie in memory. The sides are powers of two: which pixel a row is takes
# shifts and masks.


MAX_BOX = 256
"""Places along a side of a box, those between the ones that are copied too: CUDA driver API,
cuTensorMapEncodeTiled.
"""


@dataclass(frozen=True)
class PixelBoxes:
    """How the output pixels of a convolution are cut into boxes.

    Rows of the matmul are counted box by box, those outside of the images too.

    Attributes
    ----------
    extents : tuple[int, ...]
        Output pixels along each dimension, slowest first: images, their rows, their columns.
    sides : tuple[int, ...]
        Of a box, in powers of two.
    """

    extents: tuple[int, ...]
    sides: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Boxes along each dimension."""
        pairs = zip(self.extents, self.sides, strict=True)
        return tuple(math.ceil(extent / side) for extent, side in pairs)

    @property
    def rows(self) -> int:
        """Rows of all boxes."""
        return math.prod(self.counts) * math.prod(self.sides)

    def pixel(self, row: tvm.ir.Expr) -> list[tvm.ir.Expr]:
        """Where a row's pixel is along each dimension; of rows after the last beyond the images."""
        size = math.prod(self.sides)
        box, inside = row // size, row % size
        found = []
        for side, count in zip(self.sides[:0:-1], self.counts[:0:-1], strict=True):
            found.append(box % count * side + inside % side)
            box, inside = box // count, inside // side
        return [box * self.sides[0] + inside, *found[::-1]]

    def placed(self, row: tvm.ir.Expr) -> tuple[Any, Any]:
        """A row's number in the order of memory, and the condition under which it is a pixel."""
        number: Any = tirx.const(0, str(row.ty))
        inside: Any = tirx.const(True, "bool")
        for at, extent in zip(self.pixel(row), self.extents, strict=True):
            number = number * extent + at
            inside = tirx.And(inside, at < tirx.const(extent, str(row.ty)))
        return number, inside


def pixel_boxes(extents: Sequence[int], strides: Sequence[int], rows: int) -> PixelBoxes:
    """The boxes of ``rows`` rows, a power of two, of which the fewest cover all output pixels.

    ``strides``: places of the image between neighbouring output pixels along each dimension. Of as
    few boxes, those with the longest sides along the fastest dimensions.
    """
    found = [
        PixelBoxes(tuple(extents), sides)
        for sides in _sides(rows, len(extents))
        if all(s * n <= MAX_BOX for s, n in zip(strides, sides, strict=True))
    ]
    if not found:
        raise NotApplicable("the strides are too long for boxes of TMA copies")
    return min(found, key=lambda boxes: (boxes.rows, boxes.sides))


def _sides(rows: int, rank: int) -> Iterator[tuple[int, ...]]:
    """All powers of two for each of ``rank`` dimensions whose product is ``rows``."""
    if rank == 1:
        yield (rows,)
        return
    side = 1
    while side <= rows:
        yield from ((side, *rest) for rest in _sides(rows // side, rank - 1))
        side *= 2


# The image of a convolution as a tensor of which TMA copies bring boxes of pixels.
#
# For every tap of the window and every few channels of it, a box of output pixels needs one box
# of the image, shifted by the tap. What is outside of the image comes as zeros: its padding.
# Where neighbouring output pixels are ``stride`` places apart, so are those that a copy takes of
# its box.


MAX_STRIDE = 8
"""Of the places that a copy takes of its box: CUDA driver API, cuTensorMapEncodeTiled."""


@dataclass(frozen=True)
class Walk:
    """The place along a dimension: ``stride * pixel + dilation * tap + first``.

    ``pixel`` and ``tap`` are which dimension of the output and of the window move it; None: none.
    """

    first: int
    pixel: int | None = None
    stride: int = 1
    tap: int | None = None
    dilation: int = 1


@dataclass(frozen=True)
class ImageTensor:
    """The image of a convolution, channels last, as the operand A of a matmul.

    Attributes
    ----------
    buffer : tirx.Buffer
        Its parameter of the kernel.
    extents : tuple[int, ...]
        Sizes of its dimensions, slowest first, without the channels.
    walks : tuple[Walk, ...]
        What moves along each of these.
    steps : TapSteps
        The steps of the matmul.
    pixels : PixelBoxes
        The rows of the matmul.
    """

    buffer: tirx.Buffer
    extents: tuple[int, ...]
    walks: tuple[Walk, ...]
    steps: TapSteps
    pixels: PixelBoxes

    across = False
    """Its steps are neighbours in memory: see ``OperandTensor``."""

    def encoded(self, tensor_map: tirx.Var, box: tuple[int, int]) -> tirx.Stmt:
        """What the host does before the launch; ``box``: channels, and rows."""
        boxes, strides = [box[0]], [1]
        for walk in reversed(self.walks):
            side = self.pixels.sides[walk.pixel] if walk.pixel is not None else 1
            # Of so many places as many are copied as there are pixels.
            boxes.append(side * walk.stride)
            strides.append(walk.stride)
        return encoded_map(tensor_map, self.buffer, self._dimensions(), boxes, strides)

    def lines(self, extent: int) -> int:
        """Rows that one copy brings of the ``extent`` of a tile."""
        return math.prod(self.pixels.sides)

    def at(
        self, batch: tvm.ir.Expr, selecting: tvm.ir.Expr, step: tvm.ir.Expr
    ) -> list[tvm.ir.Expr]:
        """The coordinates of a row's pixel at a step, fastest dimension first."""
        pixel = self.pixels.pixel(selecting)
        tap, channel = self.steps.split(step)
        found = []
        for walk in self.walks:
            place = tirx.const(walk.first, "int32")
            if walk.pixel is not None:
                place = place + pixel[walk.pixel] * walk.stride
            if walk.tap is not None:
                place = place + tap[walk.tap] * walk.dilation
            found.append(place)
        return [place.astype("int32") for place in (channel, *reversed(found))]

    def _dimensions(self) -> list[TensorMapDimension]:
        """Fastest first."""
        found = [TensorMapDimension(self.steps.channels, 1)]
        for extent in reversed(self.extents):
            found.append(TensorMapDimension(extent, found[-1].extent * found[-1].stride))
        return found


TmaOperand = OperandTensor | ImageTensor


def image_tensor(
    load: tvm.ir.TensorLoad,
    padding: Padding | None,
    variables: Sequence[tirx.Var],
    axes: MatmulAxes,
    rows: int,
    depth: int,
) -> ImageTensor:
    """The image that ``load`` reads, or would read were it not padded.

    Parameters
    ----------
    load : tvm.ir.TensorLoad
        The load.
    padding : Padding or None
        What computes the array that is loaded from.
    variables : sequence of tirx.Var
        The loops of the matmul that ``axes`` are of.
    rows, depth : int
        Rows and steps whose operands a copy brings.
    """
    buffer = load.source if padding is None else padding.source
    before = padding.before if padding is not None else (0,) * len(load.indices)
    name = buffer.name
    if not is_compact(buffer) or not 2 <= len(load.indices) <= MAX_RANK:
        raise NotApplicable(
            f"the layout of {name} is not plain, or of more dimensions than a copy's"
        )
    moved = [_moved(index, variables, axes) for index in load.indices]
    if any(found is None for found in moved):
        raise NotApplicable(f"{name} is not read at regular distances")
    *outer, last = [found for found in moved if found is not None]
    if axes.batch or len(last) != 2 or last.get(axes.k[-1]) != 1 or last[-1] != before[-1]:
        raise NotApplicable(
            f"neighbours in {name} are not neighbouring channels of one convolution"
        )
    taps = axes.k[:-1]
    walks = [_walk(m, shift, axes, taps) for m, shift in zip(outer, before[:-1], strict=True)]
    *extents, channels = [static_extent(size) or 0 for size in buffer.shape]
    if channels * element_bytes(buffer) % ALIGNMENT:
        raise NotApplicable(f"the channels of {name} are not whole pieces of {ALIGNMENT} bytes")
    if not _covers(walks, len(axes.m), len(taps)) or max(extents) > MAX_EXTENT:
        raise NotApplicable(f"{name} is not walked as the image of a convolution is")
    strides = {w.pixel: w.stride for w in walks if w is not None}
    if max(strides.values()) > MAX_STRIDE:
        raise NotApplicable(f"{name} is read with a stride of more than {MAX_STRIDE}")
    pixels = [axes.extents[axis] for axis in axes.m]
    boxes = pixel_boxes(pixels, [strides[n] for n in range(len(pixels))], rows)
    steps = TapSteps(tuple(axes.extents[axis] for axis in taps), channels, depth)
    known = tuple(walk for walk in walks if walk is not None)
    return ImageTensor(buffer, tuple(extents), known, steps, boxes)


def _moved(
    index: tvm.ir.Expr, variables: Sequence[tirx.Var], axes: MatmulAxes
) -> dict[int, int] | None:
    """By how much each loop moves an index, and at -1 where it begins; None if not evenly."""
    linear = linear_numbers(index, variables)
    if linear is None:
        return None
    steps, first = linear
    found = {axis: step for axis, step in enumerate(steps) if step and axes.extents[axis] > 1}
    return {**found, -1: first}


def _walk(moved: dict[int, int], before: int, axes: MatmulAxes, taps: Sequence[int]) -> Walk | None:
    """How a dimension is walked; None where by more than a pixel and a tap, or backwards."""
    rows = [axis for axis in axes.m if axis in moved]
    window = [axis for axis in taps if axis in moved]
    if len(moved) != 1 + len(rows) + len(window) or len(rows) > 1 or len(window) > 1:
        return None
    if any(moved[axis] < 1 for axis in (*rows, *window)):
        return None
    return Walk(
        first=moved[-1] - before,
        pixel=list(axes.m).index(rows[0]) if rows else None,
        stride=moved[rows[0]] if rows else 1,
        tap=list(taps).index(window[0]) if window else None,
        dilation=moved[window[0]] if window else 1,
    )


def _covers(walks: Sequence[Walk | None], pixels: int, taps: int) -> bool:
    """Whether every dimension of the output and of the window moves one of the image's."""
    if any(walk is None for walk in walks):
        return False
    by_pixel = sorted(w.pixel for w in walks if w is not None and w.pixel is not None)
    by_tap = sorted(w.tap for w in walks if w is not None and w.tap is not None)
    return by_pixel == list(range(pixels)) and by_tap == list(range(taps))


ROW_BYTES = (128, 64, 32)
"""Rows of shared memory that TMA copies and the instructions swizzle."""

# Bytes of products in whose time a block waits for one more pair of operand tiles. Estimate.
_ROW_OVERHEAD = 16


@dataclass(frozen=True)
class WarpgroupGemmOperands:
    """A and B in memory, and the M and K that the kernel goes through.

    Attributes
    ----------
    tensors : (OperandTensor or ImageTensor, OperandTensor)
        A and B.
    m, k : int
        Of the matmul, with those that only fill boxes.
    pixels : PixelBoxes or None
        What the rows are for a convolution; None: rows of A in order.
    row_bytes : int
        Bytes of the steps that are brought at a time.
    """

    tensors: tuple[TmaOperand, OperandTensor]
    m: int
    k: int
    pixels: PixelBoxes | None = None
    row_bytes: int = SWIZZLED_ROW_BYTES

    @property
    def instruction(self) -> MatrixInstruction:
        """The instruction for the types of A and B."""
        a, b = (str(tensor.buffer.dtype) for tensor in self.tensors)
        return WARPGROUP_INSTRUCTIONS[a, b]


def order_steps_last(sch: s_tir.Schedule, main: SBlockRV, axes: MatmulAxes) -> None:
    """Has constant filters or weights kept with neighbouring steps, where types ask for that."""
    block = sch.get(main)
    regions = operands_of(block)
    which = axes.operands[1]
    region = regions[which]
    if str(region.source.dtype) in ACROSS or len(axes.n) != 1:
        return
    if constant_parameter(sch.mod["main"], region.source) is None:
        return
    column = block.iter_vars[axes.n[0]].var
    if depends(region.region[-1].min, column):
        move_outermost(sch, main, which, axes.n[0])


def group_operands(
    sch: s_tir.Schedule, main: SBlockRV, axes: MatmulAxes, tf32: bool
) -> WarpgroupGemmOperands:
    """The operands of ``main``, of float32 with ``tf32`` only. Raises NotApplicable for others."""
    block = sch.get(main)
    loads = factors_of(block)
    if not loads:
        raise NotApplicable("it adds up something other than products of two operands")
    _refuse_types(loads, str(block.writes[0].source.dtype), tf32)
    if loads[0].source.same_as(loads[1].source):
        raise NotApplicable("both operands are the same array")
    reads = operands_of(block)
    a, b = (next(x for x in loads if x.source.same_as(reads[n].source)) for n in axes.operands)
    padding = _padding(sch, main, a)
    params = sch.mod["main"].params
    sources = [a.source if padding is None else padding.source, b.source]
    if not all(among(source, params) for source in sources):
        raise NotApplicable("an operand is computed in the kernel")
    plain = flattened(block.body, FlatViews())
    if plain is None:
        raise NotApplicable("an operand's layout is not plain")
    addresses = [_address_of(plain, loads, load) for load in (a, b)]
    return _by_depth(_tensors(block, (a, b), addresses, axes, padding))


def _refuse_types(loads: list[tvm.ir.TensorLoad], total: str, tf32: bool) -> None:
    dtypes = sorted({str(load.source.dtype) for load in loads})
    instruction = WARPGROUP_INSTRUCTIONS.get((dtypes[0], dtypes[-1]))
    if instruction is None or (instruction.rate == "tf32" and not tf32):
        raise NotApplicable(f"operands are of {', '.join(dtypes)}, which has no instructions here")
    own = () if instruction.accumulator == "int32" else (dtypes[0],)
    if total not in (instruction.accumulator, *own):
        raise NotApplicable(f"it adds up products of {dtypes[0]} in {total}")


def _padding(sch: s_tir.Schedule, main: SBlockRV, load: tvm.ir.TensorLoad) -> Padding | None:
    """What computes the array of a load, if that is a padding."""
    writer = writer_of(sch, main, load.source)
    return padding_of(sch.get(writer)) if writer is not None else None


def _tensors(
    block: s_tir.SBlock,
    loads: tuple[Any, Any],
    addresses: list[tvm.ir.Expr],
    axes: MatmulAxes,
    padding: Padding | None,
) -> WarpgroupGemmOperands:
    variables = [iter_var.var for iter_var in block.iter_vars]
    a = loads[0]

    def matrix(at: int, taps: int = 0, depth: int = 0) -> OperandTensor:
        groups = (axes.batch, axes.n if at else axes.m, axes.k[taps:])
        return operand_tensor(
            *(loads[at], addresses[at], variables, axes.extents, groups),
            *(axes.k[:taps], depth),
        )

    no_matrix: NotApplicable | None = None
    try:
        first = matrix(0)
    except NotApplicable as refused:
        no_matrix = refused
    if padding is None and no_matrix is None:
        return WarpgroupGemmOperands((first, matrix(1)), axes.size(axes.m), axes.size(axes.k))
    source = a.source if padding is None else padding.source
    row_bytes = _row_bytes((static_extent(source.shape[-1]) or 0) * element_bytes(source))
    depth = row_bytes // element_bytes(source)
    try:
        image = image_tensor(a, padding, variables, axes, ROWS, depth)
    except NotApplicable:
        if no_matrix is not None and len(axes.m) == len(axes.k) == 1:
            raise no_matrix from None
        raise
    second = matrix(1, len(axes.k) - 1, depth)
    return WarpgroupGemmOperands(
        (image, second), image.pixels.rows, image.steps.count, image.pixels, row_bytes
    )


def _row_bytes(channels: int) -> int:
    """The bytes of a pixel's ``channels`` to bring at a time: full rows, and few of them."""

    def cost(row: int) -> int:
        return math.ceil(channels / row) * (row + _ROW_OVERHEAD)

    return min(ROW_BYTES, key=lambda row: (cost(row), -row))


def _by_depth(operands: WarpgroupGemmOperands) -> WarpgroupGemmOperands:
    """``operands`` if its types have instructions for how they lie in memory."""
    for tensor in operands.tensors:
        dtype = str(tensor.buffer.dtype)
        if tensor.across and dtype not in ACROSS:
            raise NotApplicable(
                f"{tensor.buffer.name} of {dtype} has no neighbouring steps in memory"
            )
    return operands


def _address_of(
    plain: tirx.BufferStore, loads: list[tvm.ir.TensorLoad], load: tvm.ir.TensorLoad
) -> tvm.ir.Expr:
    """The address of one of the matmul's ``loads`` in its flattened form."""
    flat = nodes(plain.value, tvm.ir.TensorLoad)[1:]
    return flat[next(i for i, other in enumerate(loads) if other.same_as(load))].indices[0]
