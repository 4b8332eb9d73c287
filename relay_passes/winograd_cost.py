"""Modelled time of a convolution computed by Winograd's algorithm, beside its direct form."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from statistics import geometric_mean
from typing import Any, Protocol

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from tvm_ext.hardware.cost_model import Work, cost_model
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.relay_passes.binding_rewriter import GraphView
from tvm_ext.relay_passes.expressions import feature_map_obstacle, nominal_shape, tensor_bytes
from tvm_ext.relay_passes.winograd_transforms import Matrix, WinogradForm

# Rows of the matrices for points p and -p share half of their sums.
_SHARED = 0.6


class Roofline(Protocol):
    """Whoever knows the time of work: a cost model, or what a layout plan knows of a machine."""

    def seconds(self, work: Work) -> float:
        """Time of one kernel that does ``work``."""
        ...


@dataclass(frozen=True)
class WinogradWork:
    """What the algorithm does for one convolution.

    Attributes
    ----------
    form : WinogradForm
        Sides of tile and kernel.
    tiles : int
        Tiles of outputs, cut ones included.
    inputs, outputs : int
        Channels; outputs as computed, padding included.
    """

    form: WinogradForm
    tiles: int
    inputs: int
    outputs: int

    @classmethod
    def of(
        cls, form: WinogradForm, batch: int, sides: tuple[int, int], inputs: int, outputs: int
    ) -> "WinogradWork":
        """For ``batch`` outputs of ``sides`` height and width."""
        rows, columns = (-(-side // step) for side, step in zip(sides, form.tile, strict=True))
        return cls(form, batch * rows * columns, inputs, outputs)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the transformed weights, float32."""
        return 4 * self.form.positions * self.inputs * self.outputs

    def seconds(self, machine: Roofline) -> float:
        """Modelled time of the transforms and the products."""
        positions, channels = self.form.positions, self.inputs + self.outputs
        products = Work(
            flops=2.0 * positions * self.tiles * self.inputs * self.outputs,
            bytes=self.weight_bytes + 2 * 4 * positions * self.tiles * channels,
        )
        read_and_written = self.form.tile[0] * self.form.tile[1] * channels
        transforms = Work(
            flops=2.0 * self.tiles * self._transform_instructions,
            bytes=4 * self.tiles * read_and_written,
        )
        return machine.seconds(products) + machine.seconds(transforms)

    @property
    def _transform_instructions(self) -> float:
        """Arithmetic, loads and stores of both transforms, of one tile and all its channels."""
        rows, columns = self.form.sides
        there = 2 * self.form.positions + (
            _terms(rows.input) * columns.inputs + _terms(columns.input) * rows.inputs
        )
        back = (
            self.form.positions
            + rows.outputs * columns.outputs
            + (_terms(rows.output) * columns.inputs + _terms(columns.output) * rows.outputs)
        )
        return there * self.inputs + back * self.outputs


def _terms(matrix: Matrix) -> float:
    """Multiply-adds to apply a matrix to one vector of tile elements."""
    if len(matrix) == 1:
        return 0.0
    return _SHARED * sum(factor != 0 for row in matrix for factor in row)


# Modelled gain below which the direct form stays: it is exact to fewer roundings, and packs less.
LEAST_GAIN = 1.25

# A batch that a run decides is taken to be each of these.
_BATCHES = (1, 8)

# Sides of tiles of outputs by taps. In two dimensions rounding errors multiply: tiles with more
# than six inputs are for one. Small tiles multiply more often and read fewer weights: they are for
# small images of many channels.
_TILES: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {
    (3, 3): ((4, 4), (2, 2)),
    (5, 5): ((2, 2),),
    (3, 1): ((4, 1),),
    (5, 1): ((4, 1),),
    (7, 1): ((2, 1),),
}


@dataclass(frozen=True)
class WinogradGain:
    """How many times as fast as their direct form the convolutions of a function would be.

    Attributes
    ----------
    machine : CpuDescription
        Runs them.
    weight_bytes : float
        Bytes of the weights of all convolutions, which pass between two runs of one of them.
    """

    machine: CpuDescription
    weight_bytes: float

    @classmethod
    def of_function(cls, machine: CpuDescription, view: GraphView) -> "WinogradGain":
        """For the convolutions that ``view`` shows."""
        calls = [view.call(v, "relax.nn.conv2d") for v in view.bindings()]
        weights = {hash(c.args[1]): c.args[1] for c in calls if c is not None}
        constant = (w for w in weights.values() if isinstance(w, GenericConst))
        return cls(machine, sum(tensor_bytes(w.ty) for w in constant))

    def padded(self, outputs: int) -> int:
        """Channels that are computed for ``outputs`` of them: whole vectors."""
        lanes = self.machine.vector_lanes("float32")
        return -(-outputs // lanes) * lanes

    def fastest(
        self, call: relax.Call, forms: Sequence[WinogradForm], dtype: str
    ) -> tuple[float, WinogradForm]:
        """The form that gains most over the direct one with products of ``dtype``, and its gain.

        Of a symbolic batch of known images it is the mean of those for one item and for eight.
        """
        unknown = [not isinstance(size, tirx.IntImm) for size in call.ty.shape]
        batches = _BATCHES if unknown == [True, False, False, False] else (1,)
        direct = [self._direct_seconds(call, dtype, times) for times in batches]

        def gain(form: WinogradForm) -> float:
            seconds = (self._seconds(call, form, times) for times in batches)
            return geometric_mean(a / b for a, b in zip(direct, seconds, strict=True))

        return max(((gain(form), form) for form in forms), key=lambda found: found[0])

    def _seconds(self, call: relax.Call, form: WinogradForm, times: int) -> float:
        batch, height, width, outputs = nominal_shape(call.ty) or []
        inputs = int(call.args[0].ty.shape[-1])
        sides = height, width
        work = WinogradWork.of(form, times * batch, sides, inputs, self.padded(outputs))
        growth = work.weight_bytes / tensor_bytes(call.args[1].ty)
        return work.seconds(cost_model(self.machine)) + self._loading(work.weight_bytes, growth)

    def _direct_seconds(self, call: relax.Call, dtype: str, times: int) -> float:
        kernel = [int(size) for size in call.args[1].ty.shape]
        flops = 2.0 * prod(kernel[:3]) * times * prod(nominal_shape(call.ty) or [])
        weights = tensor_bytes(call.args[1].ty)
        nbytes = weights + times * (tensor_bytes(call.args[0].ty) + tensor_bytes(call.ty))
        work = Work(flops, nbytes, dtype)
        return cost_model(self.machine).seconds(work) + self._loading(weights)

    def _loading(self, weight_bytes: float, growth: float = 1.0) -> float:
        """Time to read weights from where they are left by the layers between two runs.

        ``growth``: how many times as large as in the direct form they are, those of others as well.
        As much again is taken to lie beside them: maps of the layers, and what others have in the
        cache.
        """
        return weight_bytes / self.machine.bandwidth(2 * growth * self.weight_bytes)


def winograd_forms(call: relax.Call) -> Sequence[WinogradForm]:
    """The forms for the kernel's taps; none when the algorithm is not for such a convolution."""
    attrs: Any = call.attrs
    layout = str(attrs.kernel_layout)
    shape = call.args[1].ty.shape
    if not isinstance(shape, relax.ShapeExpr) or str(attrs.data_layout) != "NHWC":
        return ()
    sides = [shape[layout.index(axis)] for axis in "HW"]
    if not all(isinstance(side, tvm.tirx.IntImm) for side in sides) or int(attrs.groups) != 1:
        return ()
    height, width = (int(side) for side in sides)
    steps = [
        *attrs.strides,
        *(d for d, side in zip(attrs.dilation, sides, strict=True) if int(side) > 1),
    ]
    if any(int(step) != 1 for step in steps):
        return ()
    return forms_of_taps(height, width)


def forms_of_taps(height: int, width: int) -> Sequence[WinogradForm]:
    """The forms for kernels of this size; none where the algorithm is not for them."""
    swapped = [(down, across) for across, down in _TILES.get((width, height), ())]
    tiles = _TILES.get((height, width), swapped)
    return [WinogradForm(tile, (height, width)) for tile in tiles]


def winograd_obstacle(call: relax.Call) -> str:
    """Why a convolution that has a form is computed directly; empty where nothing forbids it."""
    attrs: Any = call.attrs
    if not isinstance(call.args[1], GenericConst):
        return "its weights are not constant"
    types = {str(arg.ty.dtype) for arg in (*call.args, call)}
    if types != {"float32"}:
        return f"it computes in {' and '.join(sorted(types))}, not in float32"
    if (str(attrs.kernel_layout), str(attrs.out_layout)) != ("HWIO", "NHWC"):
        return f"its layouts are {attrs.kernel_layout} and {attrs.out_layout}, not HWIO and NHWC"
    return feature_map_obstacle(-1, call.args[0], call)
