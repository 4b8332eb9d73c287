"""WinogradConvolution: convolutions by Winograd's algorithm where that is modelled to be faster.

``winograd_transforms`` has the matrices and the tensor expressions, ``winograd_cost`` the modelled
times, which ``LayoutPlanning`` asks for as well.
"""

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_ext.hardware.cpu.description import CpuDescription, current_cpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.graph_pass import OUT_ELEMENTWISE_FUSABLE, graph_pass
from tvm_ext.relay_passes.winograd_cost import (
    LEAST_GAIN,
    WinogradGain,
    winograd_forms,
    winograd_obstacle,
)
from tvm_ext.relay_passes.winograd_transforms import WinogradForm


@graph_pass
class WinogradConvolution:
    """Replaces a convolution by transforms of its input and output around matmuls.

    Before: ``conv2d(x, W)`` with 3x3 taps, channels last: 9 multiplications an output and input
            channel
    After:  ``call_tir(winograd_conv2d, (x, U))`` with ``U = G W G^T`` computed at compile time and
            2.25 multiplications, F(4x4, 3x3)

    Small images of many channels have F(2x2, 3x3), whose weights are fewer. So are 5x5 taps, F(2x2,
    5x5), and rows or columns of 3, 5 and 7 taps, F(4, 3), F(4, 5), F(2, 7).
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
        self._transformed: dict[tuple[int, int, str], tuple[GenericConst, relax.Expr]] = {}

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        self._gains = WinogradGain.of_function(self.machine, self.view)

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, "relax.nn.conv2d")
        forms = winograd_forms(call) if call is not None else ()
        if call is None or not forms:
            return None
        reason = winograd_obstacle(call)
        if not reason and self._sums_integers(call):
            reason = "its sums are whole numbers, which transforms would round"
        if reason:
            self.refuse(reason, var)
            return None
        outputs = int(var.ty.shape[-1])
        padded = self._gains.padded(outputs)
        gain, form = self._gains.fastest(call, forms, "float32")
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
        key = hash(constant), channels, form.name
        if key not in self._transformed:
            array = form.transformed_weights(constant.value.numpy(), channels)
            # The original is kept for its identity.
            self._transformed[key] = constant, relax.const(array, "float32")
        return self._transformed[key][1]
