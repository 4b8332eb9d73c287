"""Computes 3x3 convolutions by Winograd's algorithm where that is modelled to be faster."""

from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_ext.hardware.cost import Work
from tvm_ext.hardware.description import CpuDescription
from tvm_ext.hardware.roofline import cost_model
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.layout_cost import tensor_bytes
from tvm_ext.relay_passes.winograd_compute import transformed_weights, winograd_convolution
from tvm_ext.relay_passes.winograd_cost import WinogradWork

# Modelled gain below which the direct form stays: it is exact to fewer roundings, and packs less.
LEAST_GAIN = 1.25

# TVM's number for kernels that take in what follows them element by element.
_OUT_ELEMENTWISE_FUSABLE = 4


@graph_pass
class WinogradConvolution:
    """Replaces a 3x3 convolution by transforms of its input and output around matrix products.

    Before: ``conv2d(x, W)``, channels last, 9 multiplications an output and input channel
    After:  ``call_tir(winograd_conv2d, (x, U))`` with ``U = G W G^T`` computed at compile time and
            2.25 multiplications, F(4x4, 3x3)

    Rounding: outputs differ from the direct form by about 1e-5 of the largest output in float32.

    Leaves alone: other kernels than 3x3, strides, dilations, groups; weights that are not
    constant; other types than float32; symbolic shapes; channels-first layouts; targets that are
    not CPUs; maps so small, or weights so large, that reading 36 instead of 9 weights a channel
    pair costs more than is saved.

    Run after: ConvBnReluFold, LayoutPlanning. Run before: PadOutputChannels, LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when nothing gains."""
        machine = resolve_target(tvm.target.Target.current(allow_none=True) or "cpu")
        if not isinstance(machine, CpuDescription):
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
        if call is None or not _is_three_by_three(call):
            return None
        reason = _obstacle(call)
        if reason is not None:
            self.refuse(reason, var)
            return None
        batch, height, width, outputs = (int(size) for size in var.ty.shape)
        inputs = int(call.args[0].ty.shape[-1])
        lanes = self.machine.vector_lanes("float32")
        padded = -(-outputs // lanes) * lanes
        work = WinogradWork.of(batch, (height, width), inputs, padded)
        gain = self._direct_seconds(call) / self._seconds(work)
        if gain < LEAST_GAIN:
            self.refuse(f"modelled to run at {gain:.2f} times the direct form's speed", var)
            return None
        padding = [int(pad) for pad in call.attrs.padding]
        replacement = self.builder.call_te(
            lambda x, u: winograd_convolution(x, u, padding, outputs),
            *(call.args[0], self._weights(call.args[1], padded)),
            primfunc_name_hint="winograd_conv2d",
            primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE},
        )
        return Replacement(replacement, (), f"F(4x4, 3x3), modelled {gain:.1f} times as fast")

    def _direct_seconds(self, call: relax.Call) -> float:
        outputs = [int(size) for size in call.ty.shape]
        flops = 2.0 * 9 * int(call.args[0].ty.shape[-1])
        for size in outputs:
            flops *= size
        weights = tensor_bytes(call.args[1].ty)
        nbytes = weights + tensor_bytes(call.args[0].ty) + tensor_bytes(call.ty)
        return max(self.costs.seconds(Work(flops, nbytes)), self._loading(weights))

    def _seconds(self, work: WinogradWork) -> float:
        return max(work.seconds(self.costs), self._loading(work.weight_bytes))

    def _loading(self, weight_bytes: float) -> float:
        """Time to read weights from where they are left by the layers between two runs."""
        return weight_bytes / self.machine.bandwidth(self._weight_bytes)

    def _weights(self, constant: GenericConst, channels: int) -> relax.Expr:
        key = hash(constant), channels
        if key not in self._transformed:
            array = transformed_weights(constant.value.numpy(), channels)
            # The original is kept for its identity.
            self._transformed[key] = constant, relax.const(array, "float32")
        return self._transformed[key][1]


def _is_three_by_three(call: relax.Call) -> bool:
    """Whether the algorithm is for such a convolution at all."""
    attrs: Any = call.attrs
    layout = str(attrs.kernel_layout)
    shape = call.args[1].ty.shape
    if not isinstance(shape, relax.ShapeExpr) or str(attrs.data_layout) != "NHWC":
        return False
    sides = [shape[layout.index(axis)] for axis in "HW"]
    ones = [*attrs.strides, *attrs.dilation, attrs.groups]
    return all(isinstance(side, tvm.tirx.IntImm) and int(side) == 3 for side in sides) and all(
        int(value) == 1 for value in ones
    )


def _obstacle(call: relax.Call) -> str | None:
    attrs: Any = call.attrs
    if not isinstance(call.args[1], GenericConst):
        return "its weights are not constant"
    types = {str(arg.ty.dtype) for arg in (*call.args, call)}
    if types != {"float32"}:
        return f"it computes in {' and '.join(sorted(types))}, not in float32"
    if (str(attrs.kernel_layout), str(attrs.out_layout)) != ("HWIO", "NHWC"):
        return f"its layouts are {attrs.kernel_layout} and {attrs.out_layout}, not HWIO and NHWC"
    shapes = (call.args[0].ty.shape, call.ty.shape)
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return "its shape is not known"
    if not all(isinstance(size, tvm.tirx.IntImm) for shape in shapes for size in shape.values):
        return "its shape is symbolic"
    return None
