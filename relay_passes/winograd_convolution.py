"""Computes convolutions by Winograd's algorithm where that is modelled to be faster."""

import math
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_ext.hardware.cost import Work
from tvm_ext.hardware.description import CpuDescription
from tvm_ext.hardware.roofline import cost_model
from tvm_ext.hardware.targets import current_cpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.graph_pass import OUT_ELEMENTWISE_FUSABLE, graph_pass
from tvm_ext.relay_passes.layout_cost import tensor_bytes
from tvm_ext.relay_passes.static_shape import shape_obstacle
from tvm_ext.relay_passes.winograd_compute import WinogradForm
from tvm_ext.relay_passes.winograd_cost import WinogradWork

# Modelled gain below which the direct form stays: it is exact to fewer roundings, and packs less.
LEAST_GAIN = 1.25

# Sides of a tile of outputs by taps, in the order of preference. In two dimensions rounding errors
# multiply: tiles with more than six inputs are for one.
_TILES = {(3, 3): (4, 4), (5, 5): (2, 2), (3, 1): (4, 1), (5, 1): (4, 1), (7, 1): (2, 1)}


@graph_pass
class WinogradConvolution:
    """Replaces a convolution by transforms of its input and output around matrix products.

    Before: ``conv2d(x, W)`` with 3x3 taps, channels last: 9 multiplications an output and input
            channel
    After:  ``call_tir(winograd_conv2d, (x, U))`` with ``U = G W G^T`` computed at compile time and
            2.25 multiplications, F(4x4, 3x3)

    So are 5x5 taps, F(2x2, 5x5), and rows or columns of 3, 5 and 7 taps, F(4, 3), F(4, 5), F(2, 7).
    Rounding: outputs differ from the direct form by about 1e-5 of the largest output in float32.

    Leaves alone: other kernels, strides, dilations, groups; weights that are not constant; other
    types than float32; symbolic shapes; channels-first layouts; targets that are not CPUs; maps so
    small, or weights so large, that reading more weights (36 instead of 9) costs more than is
    saved.

    Run after: ConvBnReluFold, LayoutPlanning. Run before: PadOutputChannels, LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when nothing gains."""
        machine = current_cpu()
        if machine is None:
            return mod
        return _Rewriter(machine).run(mod)


class _Rewriter(BindingRewriter):
    pass_name = "WinogradConvolution"

    def __init__(self, machine: CpuDescription) -> None:
        super().__init__()
        self.machine = machine
        self.costs = cost_model(machine)
        self._weight_bytes = 0.0
        self._transformed: dict[tuple[int, int], tuple[GenericConst, relax.Expr]] = {}

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        calls = [self.view.call(v, "relax.nn.conv2d") for v in self.view.bindings()]
        weights = {hash(c.args[1]): c.args[1] for c in calls if c is not None}
        self._weight_bytes = sum(
            tensor_bytes(w.ty) for w in weights.values() if isinstance(w, GenericConst)
        )

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, "relax.nn.conv2d")
        form = _form_of(call) if call is not None else None
        if call is None or form is None:
            return None
        if reason := _obstacle(call):
            self.refuse(reason, var)
            return None
        batch, height, width, outputs = (int(size) for size in var.ty.shape)
        inputs = int(call.args[0].ty.shape[-1])
        lanes = self.machine.vector_lanes("float32")
        padded = -(-outputs // lanes) * lanes
        work = WinogradWork.of(form, batch, (height, width), inputs, padded)
        gain = self._direct_seconds(call) / self._seconds(work)
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

    def _direct_seconds(self, call: relax.Call) -> float:
        kernel = [int(size) for size in call.args[1].ty.shape]
        flops = 2.0 * math.prod(kernel[:3]) * math.prod(int(size) for size in call.ty.shape)
        weights = tensor_bytes(call.args[1].ty)
        nbytes = weights + tensor_bytes(call.args[0].ty) + tensor_bytes(call.ty)
        return max(self.costs.seconds(Work(flops, nbytes)), self._loading(weights))

    def _seconds(self, work: WinogradWork) -> float:
        return max(work.seconds(self.costs), self._loading(work.weight_bytes))

    def _loading(self, weight_bytes: float) -> float:
        """Time to read weights from where they are left by the layers between two runs."""
        return weight_bytes / self.machine.bandwidth(self._weight_bytes)

    def _weights(self, form: WinogradForm, constant: GenericConst, channels: int) -> relax.Expr:
        key = hash(constant), channels
        if key not in self._transformed:
            array = form.transformed_weights(constant.value.numpy(), channels)
            # The original is kept for its identity.
            self._transformed[key] = constant, relax.const(array, "float32")
        return self._transformed[key][1]


def _form_of(call: relax.Call) -> WinogradForm | None:
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


def _obstacle(call: relax.Call) -> str:
    attrs: Any = call.attrs
    if not isinstance(call.args[1], GenericConst):
        return "its weights are not constant"
    types = {str(arg.ty.dtype) for arg in (*call.args, call)}
    if types != {"float32"}:
        return f"it computes in {' and '.join(sorted(types))}, not in float32"
    if (str(attrs.kernel_layout), str(attrs.out_layout)) != ("HWIO", "NHWC"):
        return f"its layouts are {attrs.kernel_layout} and {attrs.out_layout}, not HWIO and NHWC"
    return shape_obstacle(call.args[0], call)
