"""WinogradConvolution: convolutions by Winograd's algorithm where that is modelled to be faster.

Top down: the matrices of minimal filtering F(m, r), the tensor expressions that use them, the
modelled time, and the pass that compares it with that of the direct convolution.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod
from statistics import geometric_mean
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import GenericConst

from tvm_ext.hardware.cost_model import CostModel, Work, cost_model
from tvm_ext.hardware.cpu.description import CpuDescription, current_cpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, GraphView, Replacement
from tvm_ext.relay_passes.expressions import feature_map_obstacle, nominal_shape
from tvm_ext.relay_passes.graph_pass import OUT_ELEMENTWISE_FUSABLE, graph_pass
from tvm_ext.relay_passes.layout_cost import tensor_bytes

# The matrices of Winograd's minimal filtering F(m, r), by Toom and Cook's construction.
#
# S. Winograd, "Arithmetic complexity of computations", SIAM 1980; in the notation of A. Lavin and
# S. Gray, "Fast algorithms for convolutional neural networks", CVPR 2016: ``m`` outputs of a
# filter of ``r`` taps, from ``m + r - 1`` inputs ``d`` and the taps ``g``, are ``A^T ((G g) *
# (B^T d))`` with as many multiplications as inputs.


Matrix = tuple[tuple[Fraction, ...], ...]

# Interpolation points beside infinity. Rounding errors grow with their number and size.
_POINTS = (0, 1, -1, 2, -2, Fraction(1, 2), Fraction(-1, 2))


@dataclass(frozen=True)
class Transforms:
    """F(m, r).

    Attributes
    ----------
    input : Matrix
        B^T, [m + r - 1, m + r - 1].
    weight : Matrix
        G, [m + r - 1, r].
    output : Matrix
        A^T, [m, m + r - 1].
    """

    input: Matrix
    weight: Matrix
    output: Matrix

    @property
    def outputs(self) -> int:
        """m, the outputs of one tile."""
        return len(self.output)

    @property
    def inputs(self) -> int:
        """m + r - 1, the inputs of one tile."""
        return len(self.input)


@lru_cache
def transforms(outputs: int, taps: int) -> Transforms:
    """F(outputs, taps). Raises ValueError where it would take more points than there are."""
    count = outputs + taps - 2
    if not 0 <= count <= len(_POINTS):
        raise ValueError(f"F({outputs}, {taps}) needs {count} points; expected 0 to {len(_POINTS)}")
    points = [Fraction(point) for point in _POINTS[:count]]
    rows = [_polynomial([q for q in points if q != p]) for p in points]
    scales = [prod((p - q for q in points if q != p), start=Fraction(1)) for p in points]
    # Whole numbers in the input's transform, which every tile runs; fractions in the weights'.
    whole = [prod({c.denominator for c in row}, start=1) for row in rows]
    factors = [Fraction(w) * (-1 if s < 0 else 1) for w, s in zip(whole, scales, strict=True)]
    last = _polynomial(points)
    at_infinity = Fraction(prod({c.denominator for c in last}, start=1))
    top = [Fraction(0)] * (taps - 1)
    return Transforms(
        input=(
            *((*(f * c for c in row), Fraction(0)) for f, row in zip(factors, rows, strict=True)),
            tuple(at_infinity * c for c in last),
        ),
        weight=(
            *(
                tuple(p**power / (s * f) for power in range(taps))
                for p, s, f in zip(points, scales, factors, strict=True)
            ),
            (*top, 1 / at_infinity),
        ),
        output=tuple(
            (*(p**power for p in points), Fraction(int(power == outputs - 1)))
            for power in range(outputs)
        ),
    )


def _polynomial(roots: list[Fraction]) -> list[Fraction]:
    """Coefficients of the polynomial with these roots, constant first and leading one last."""
    result = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *result]
        result = [a - root * b for a, b in zip(shifted, [*result, Fraction(0)], strict=True)]
    return result


# Winograd's convolution as tensor expressions, and its weights.
#
# With ``d`` a tile of inputs, ``g`` the weights and ``*`` element by element, a tile of outputs
# is
#
#     A^T ((G g G^T) * (B^T d B)) A
#
# where each side has the matrices of ``Transforms`` for its number of taps. The
# elementwise product, summed over input channels, is a matmul of tiles and channels for
# each position.


# Blocks carry their part in the algorithm, and the sides of a tile of outputs, under these
# annotations, for whoever schedules them.
STAGE_ANNOTATION = "tvm_ext.winograd"
TILE_ANNOTATION = "tvm_ext.winograd_tile"


@dataclass(frozen=True)
class WinogradForm:
    """How a convolution is computed: outputs of a tile and taps of the kernel, rows and columns.

    A side with one tap has one output: along it nothing is transformed.
    """

    tile: tuple[int, int]
    taps: tuple[int, int]

    @property
    def sides(self) -> tuple[Transforms, Transforms]:
        """The matrices along rows and columns."""
        rows, columns = (transforms(*pair) for pair in zip(self.tile, self.taps, strict=True))
        return rows, columns

    @property
    def positions(self) -> int:
        """Multiplications of a tile for one pair of channels."""
        rows, columns = self.sides
        return rows.inputs * columns.inputs

    @property
    def name(self) -> str:
        """As the literature writes it."""
        return f"F({self.tile[0]}x{self.tile[1]}, {self.taps[0]}x{self.taps[1]})"

    def transformed_weights(self, weights: np.ndarray, channels: int) -> np.ndarray:
        """``G g G^T`` of [rows, columns, in, out] as float32 [positions, in, channels].

        Output channels beyond those of ``weights`` are zeros.
        """
        down, across = (np.array(side.weight, "float64") for side in self.sides)
        # In float64: these are rounded once, and used by every tile.
        wide = np.einsum("ai,bj,ijck->abck", down, across, weights.astype("float64"))
        inputs, outputs = weights.shape[2:]
        flat = wide.reshape(self.positions, inputs, outputs).astype("float32")
        return np.pad(flat, [(0, 0), (0, 0), (0, channels - outputs)])

    def convolution(
        self, x: te.Tensor, weights: te.Tensor, padding: Sequence[int], channels: int
    ) -> te.Tensor:
        """Convolution of stride 1: [n, h, w, channels] from x [n, h, w, in].

        ``padding`` is top, left, bottom, right. ``weights`` come from ``transformed_weights``; of
        their outputs the first ``channels`` are kept.
        """
        top, left, bottom, right = padding
        batch, height, width, _ = x.shape
        out_height = height + (top + bottom - self.taps[0] + 1)
        out_width = width + (left + right - self.taps[1] + 1)
        sides = zip((out_height, out_width), self.tile, strict=True)
        # In this form TVM sees that the tiles are all that the outputs read.
        tiles = (batch, *((side - 1) // step + 1 for side, step in sides))
        products = self._products(self._transformed_input(x, tiles, (top, left)), weights)
        return self._transformed_output(products, (batch, out_height, out_width, channels))

    def _transformed_input(
        self, x: te.Tensor, tiles: tuple[Any, Any, Any], start: tuple[int, int]
    ) -> te.Tensor:
        """``B^T d B`` for every tile: [rows, columns, n, tile rows, tile columns, in]."""
        _, height, width, inputs = x.shape
        rows, columns = self.sides
        extents = (*tiles, rows.inputs, columns.inputs, inputs)

        def padded(n: Any, th: Any, tw: Any, i: Any, j: Any, c: Any) -> tirx.Expr:
            h, w = th * self.tile[0] + i - start[0], tw * self.tile[1] + j - start[1]
            inside = tirx.all(h >= 0, h < height, w >= 0, w < width)
            return tirx.if_then_else(inside, x[n, h, w, c], tirx.const(0.0, "float32"))

        tile = self._stage("input_tile", extents, padded)
        down = self._stage(
            "input_rows",
            extents,
            lambda n, th, tw, i, j, c: _row_of(
                rows.input, i, [tile[n, th, tw, r, j, c] for r in range(rows.inputs)]
            ),
        )
        return self._stage(
            "input_transform",
            (rows.inputs, columns.inputs, *tiles, inputs),
            lambda i, j, n, th, tw, c: _row_of(
                columns.input, j, [down[n, th, tw, i, r, c] for r in range(columns.inputs)]
            ),
        )

    def _products(self, x: te.Tensor, weights: te.Tensor) -> te.Tensor:
        """One matmul a position: [rows, columns, n, tile rows, tile columns, out]."""
        depth = te.reduce_axis((0, x.shape[-1]), name="depth")
        across = self.sides[1].inputs
        return self._stage(
            "products",
            (*x.shape[:-1], weights.shape[-1]),
            lambda i, j, n, th, tw, k: te.sum(
                x[i, j, n, th, tw, depth] * weights[i * across + j, depth, k], axis=depth
            ),
        )

    def _transformed_output(
        self, products: te.Tensor, shape: tuple[Any, Any, Any, int]
    ) -> te.Tensor:
        """``A^T m A`` of every tile, put in its place: [n, h, w, channels]."""
        rows, columns = self.sides
        high, wide = self.tile
        down = self._stage(
            "output_rows",
            (*products.shape[2:5], high, columns.inputs, products.shape[-1]),
            lambda n, th, tw, y, j, k: _row_of(
                rows.output, y, [products[r, j, n, th, tw, k] for r in range(rows.inputs)]
            ),
        )
        return self._stage(
            "output",
            shape,
            lambda n, h, w, k: _row_of(
                columns.output,
                w % wide,
                [down[n, h // high, w // wide, h % high, r, k] for r in range(columns.inputs)],
            ),
        )

    def _stage(
        self, name: str, shape: Sequence[Any], element: Callable[..., tirx.Expr]
    ) -> te.Tensor:
        attrs = {STAGE_ANNOTATION: name, TILE_ANNOTATION: list(self.tile)}
        return te.compute(shape, element, f"winograd_{name}", attrs=attrs)


def _row_of(matrix: Matrix, row: Any, terms: list[tirx.Expr]) -> tirx.Expr:
    """Row ``row`` of ``matrix`` times ``terms``; unrolled, the choice of the row is gone."""
    # No Select: its condition becomes a vector, and TVM folds none of those.
    *choices, result = [_combination([float(f) for f in factors], terms) for factors in matrix]
    for index in range(len(choices) - 1, -1, -1):
        result = tirx.if_then_else(row == index, choices[index], result)
    return result


def _combination(factors: list[float], terms: list[tirx.Expr]) -> tirx.Expr:
    pairs = [(f, term) for f, term in zip(factors, terms, strict=True) if f]
    # A positive factor first: a negation would be an instruction of its own.
    pairs.sort(key=lambda pair: pair[0] < 0)
    factor, result = pairs[0]
    result = result if factor == 1 else result * tirx.const(factor, "float32")
    for factor, term in pairs[1:]:
        scaled = term if abs(factor) == 1 else term * tirx.const(abs(factor), "float32")
        result = result + scaled if factor > 0 else result - scaled
    return result


# Modelled time of a convolution computed by Winograd's algorithm.


# Rows of the matrices for points p and -p share half of their sums.
_SHARED = 0.6


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

    def seconds(self, machine: CostModel) -> float:
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

# Sides of a tile of outputs by taps, in the order of preference. In two dimensions rounding errors
# multiply: tiles with more than six inputs are for one.
_TILES = {(3, 3): (4, 4), (5, 5): (2, 2), (3, 1): (4, 1), (5, 1): (4, 1), (7, 1): (2, 1)}


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

    def over_direct(self, call: relax.Call, form: WinogradForm, dtype: str) -> float:
        """The gain over the direct form with products of ``dtype``.

        Of a symbolic batch of known images it is the mean of those for one item and for eight.
        """
        unknown = [not isinstance(size, tirx.IntImm) for size in call.ty.shape]
        batches = _BATCHES if unknown == [True, False, False, False] else (1,)
        return geometric_mean(
            self._direct_seconds(call, dtype, times) / self._seconds(call, form, times)
            for times in batches
        )

    def _seconds(self, call: relax.Call, form: WinogradForm, times: int) -> float:
        batch, height, width, outputs = nominal_shape(call.ty) or []
        inputs = int(call.args[0].ty.shape[-1])
        sides = height, width
        work = WinogradWork.of(form, times * batch, sides, inputs, self.padded(outputs))
        return max(work.seconds(cost_model(self.machine)), self._loading(work.weight_bytes))

    def _direct_seconds(self, call: relax.Call, dtype: str, times: int) -> float:
        kernel = [int(size) for size in call.args[1].ty.shape]
        flops = 2.0 * prod(kernel[:3]) * times * prod(nominal_shape(call.ty) or [])
        weights = tensor_bytes(call.args[1].ty)
        nbytes = weights + times * (tensor_bytes(call.args[0].ty) + tensor_bytes(call.ty))
        work = Work(flops, nbytes, dtype)
        return max(cost_model(self.machine).seconds(work), self._loading(weights))

    def _loading(self, weight_bytes: float) -> float:
        """Time to read weights from where they are left by the layers between two runs."""
        return weight_bytes / self.machine.bandwidth(self.weight_bytes)


@graph_pass
class WinogradConvolution:
    """Replaces a convolution by transforms of its input and output around matmuls.

    Before: ``conv2d(x, W)`` with 3x3 taps, channels last: 9 multiplications an output and input
            channel
    After:  ``call_tir(winograd_conv2d, (x, U))`` with ``U = G W G^T`` computed at compile time and
            2.25 multiplications, F(4x4, 3x3)

    So are 5x5 taps, F(2x2, 5x5), and rows or columns of 3, 5 and 7 taps, F(4, 3), F(4, 5), F(2, 7).
    Rounding: outputs differ from the direct form by about 1e-5 of the largest output in float32.

    Leaves alone: other kernels, strides, dilations, groups; weights that are not constant; other
    types than float32; symbolic channels; channels-first layouts; targets that are not CPUs; maps
    so small, or weights so large, that reading more weights (36 instead of 9) costs more than is
    saved. Of a symbolic batch of known images the gains for one item and for eight count alike.
    Symbolic heights and widths are taken to be those of a common image, and the batch is one.

    Run after: ConvBnReluFold, LayoutPlanning. Run before: PadOutputChannels, LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when nothing gains."""
        machine = current_cpu()
        return mod if machine is None else _WinogradRewriter(machine).run(mod)


class _WinogradRewriter(BindingRewriter):
    pass_name = "WinogradConvolution"
    roots = frozenset({"relax.nn.conv2d"})

    def __init__(self, machine: CpuDescription) -> None:
        self.machine = machine
        self._transformed: dict[tuple[int, int], tuple[GenericConst, relax.Expr]] = {}

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        self._gains = WinogradGain.of_function(self.machine, self.view)

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, "relax.nn.conv2d")
        form = winograd_form(call) if call is not None else None
        if call is None or form is None:
            return None
        reason = winograd_obstacle(call)
        if not reason and self._sums_integers(call):
            reason = "its sums are whole numbers, which transforms would round"
        if reason:
            self.refuse(reason, var)
            return None
        outputs = int(var.ty.shape[-1])
        padded = self._gains.padded(outputs)
        gain = self._gains.over_direct(call, form, "float32")
        if gain < LEAST_GAIN:
            self.refuse(f"modelled to run at {gain:.2f} times the direct form's speed", var)
            return None
        padding = [int(pad) for pad in call.attrs.padding]
        replacement = self.builder.call_te(
            lambda x, u: form.convolution(x, u, padding, outputs),
            *(call.args[0], self._weights(form, call.args[1], padded)),
            primfunc_name_hint="winograd_conv2d",
            primfunc_attrs={"op_pattern": OUT_ELEMENTWISE_FUSABLE},
        )
        return Replacement(replacement, (), f"{form.name}, modelled {gain:.1f} times as fast")

    def _sums_integers(self, call: relax.Call) -> bool:
        """Whether data and weights are integers in float32: see ``AccumulateInFloat32``."""
        data, weights = call.args[0], call.args[1].value.numpy()
        transposed = self.view.call(data, "relax.permute_dims")
        cast = self.view.call(data if transposed is None else transposed.args[0], "relax.astype")
        is_whole = cast is not None and "int" in str(cast.args[0].ty.dtype)
        return is_whole and np.array_equal(np.rint(weights), weights)

    def _weights(self, form: WinogradForm, constant: GenericConst, channels: int) -> relax.Expr:
        key = hash(constant), channels
        if key not in self._transformed:
            array = form.transformed_weights(constant.value.numpy(), channels)
            # The original is kept for its identity.
            self._transformed[key] = constant, relax.const(array, "float32")
        return self._transformed[key][1]


def winograd_form(call: relax.Call) -> WinogradForm | None:
    """The form for the kernel's taps; None when the algorithm is not for such a convolution."""
    attrs: Any = call.attrs
    layout = str(attrs.kernel_layout)
    shape = call.args[1].ty.shape
    if not isinstance(shape, relax.ShapeExpr) or str(attrs.data_layout) != "NHWC":
        return None
    sides = [shape[layout.index(axis)] for axis in "HW"]
    if not all(isinstance(side, tvm.tirx.IntImm) for side in sides) or int(attrs.groups) != 1:
        return None
    height, width = (int(side) for side in sides)
    steps = [
        *attrs.strides,
        *(d for d, side in zip(attrs.dilation, sides, strict=True) if int(side) > 1),
    ]
    if any(int(step) != 1 for step in steps):
        return None
    if (height, width) in _TILES:
        return WinogradForm(_TILES[height, width], (height, width))
    if (width, height) in _TILES:
        across, down = _TILES[width, height]
        return WinogradForm((down, across), (height, width))
    return None


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
