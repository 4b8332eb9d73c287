"""MixedPrecision: matmuls and convolutions of float32 in bfloat16, with sums of float32."""

import math
from collections.abc import Iterable
from dataclasses import field

import ml_dtypes
import numpy as np
import tvm
from tvm import relax

from tvm_ext.hardware.cpu.description import CpuDescription, current_cpu
from tvm_ext.hardware.matrix_instructions import LEAST_TILE_DEPTH
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.expressions import (
    constant_value,
    convolution_like,
    nominal_shape,
    tensor_bytes,
)
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.layout_cost import shape_of_convolution
from tvm_ext.relay_passes.layout_roles import CONVOLUTIONS
from tvm_ext.relay_passes.spans import origins_of
from tvm_ext.relay_passes.winograd_cost import (
    WinogradGain,
    winograd_forms,
    winograd_obstacle,
)

_NARROW, _WIDE = "bfloat16", "float32"

# Modelled gain of Winograd's algorithm in float32 over products of bfloat16 from which it is the
# faster one: its many short kernels lose more of their modelled speed. ResNet-50's layers are
# modelled at 1.7, 1.8 and 1.5, and measured at 1.5, 1.2 and 0.9.
_WINOGRAD_GAIN = 1.5


@graph_pass
class MixedPrecision:
    """Multiplies what is bfloat16, or may be rounded to it, in bfloat16 where that is faster.

    Before: ``y = matmul(x, W)``                                         all of float32
    After:  ``y = matmul(astype(x, bfloat16), W', out_dtype=float32)``   W' = W rounded, stored so

    Where ``precision="bfloat16"`` was asked for, both operands are rounded to 8 bits, to the
    nearest. Operands that were cast from bfloat16, in models of that type, are taken as they were,
    whatever was asked for. Products and sums are those of float32.

    Leaves alone: CPUs without an instruction; weights that are computed in the run or are no finite
    numbers of bfloat16; convolutions in groups, or whose channels are no neighbours; sums of few
    channels; products that take less time than rounding their operand; convolutions that
    Winograd's algorithm is modelled to compute sooner in float32.

    Run after: LayoutPlanning, FlattenPointwise. Run before: WinogradConvolution.

    ``wide_nodes`` are names of ONNX nodes whose products stay as they are.
    """

    wide_nodes: list[str] = field(default_factory=list)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        machine = current_cpu()
        if machine is None or not machine.multiplies_bfloat16:
            return mod
        return _NarrowProducts(machine, self.wide_nodes).run(mod)


class _NarrowProducts(BindingRewriter):
    pass_name = "MixedPrecision"
    roots = frozenset({"relax.matmul", *CONVOLUTIONS})

    def __init__(self, machine: CpuDescription, wide_nodes: Iterable[str]) -> None:
        self._machine = machine
        self._wide_nodes = frozenset(wide_nodes)
        self._narrow: dict[int, tuple[relax.Expr, relax.Expr | None, bool]] = {}

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        self._winograd = WinogradGain.of_function(self._machine, self.view)

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, "relax.matmul", *CONVOLUTIONS)
        if call is None or any(str(arg.ty.dtype) != _WIDE for arg in (*call.args, var)):
            return None
        data, is_asked = self._narrow_data(call.args[0]), self._machine.products == _NARROW
        if data is None and not is_asked:
            return None
        weights = constant_value(self.view, call.args[1])
        if weights is None:
            return None
        stored, is_exact = self._narrow_weights(call.args[1], weights)
        if not (is_asked or is_exact):
            return None
        reason = self._obstacle(call, weights, data is not None)
        if not self._wide_nodes.isdisjoint(origins_of(var)):
            reason = "it was asked to stay wide"
        elif stored is None:
            reason = "a weight is no number of bfloat16"
        if stored is None or reason is not None:
            self.refuse(reason or "", var)
            return None
        if data is None:
            data = self.bind(relax.op.astype(call.args[0], _NARROW), var)
        if call.op.name == "relax.matmul":
            made = relax.op.matmul(data, stored, out_dtype=_WIDE)
        else:
            made = convolution_like(call, data, stored, out_dtype=_WIDE)
        return Replacement(made, (), "multiplied in bfloat16")

    def _narrow_data(self, data: relax.Expr) -> relax.Expr | None:
        """What ``data`` was cast from where that is bfloat16."""
        cast = self.view.call(data, "relax.astype")
        is_narrow = cast is not None and str(cast.args[0].ty.dtype) == _NARROW
        return cast.args[0] if cast is not None and is_narrow else None

    def _narrow_weights(
        self, operand: relax.Expr, weights: np.ndarray
    ) -> tuple[relax.Expr | None, bool]:
        """The constant of rounded weights, one for all products that share them, and whether they
        are the same numbers; None where one is no number of bfloat16.
        """
        key = hash(operand)
        if key not in self._narrow:
            with np.errstate(all="ignore"):
                rounded = weights.astype(ml_dtypes.bfloat16)
            wide = rounded.astype(np.float32)
            stored = relax.const(tvm.runtime.tensor(np.ascontiguousarray(rounded)), _NARROW)
            made = stored if np.isfinite(wide).all() else None
            # The original is kept for its identity.
            self._narrow[key] = operand, made, np.array_equal(wide, weights)
        _, made, is_exact = self._narrow[key]
        return made, is_exact

    def _obstacle(self, call: relax.Call, weights: np.ndarray, is_narrow: bool) -> str | None:
        """Why a product stays in float32; None where it need not. ``is_narrow``: the data are."""
        shape = nominal_shape(call.ty)
        if shape is None or nominal_shape(call.args[0].ty) is None:
            return "its shape is not known"
        if call.op.name == "relax.matmul":
            if weights.ndim != 2:
                return "the weights are no matrix"
            depth, steps = weights.shape[0], weights.shape[0]
        else:
            convolution = shape_of_convolution(call)
            if convolution.groups != 1:
                return "a convolution in groups"
            if not str(call.attrs.data_layout).endswith("C"):
                return "the channels are no neighbours"
            if self._is_sooner_by_winograd(call):
                return "Winograd's algorithm takes less time in float32"
            depth = convolution.group_inputs
            steps = depth * math.prod(convolution.kernel)
        if depth < LEAST_TILE_DEPTH:
            return "few channels are summed"
        has_tiles = self._machine.tile_instruction(_NARROW, _NARROW) is not None
        instructions = self._machine.instructions(_NARROW)
        if not has_tiles and all(depth % instruction.k for instruction in instructions):
            return "no whole number of instructions adds its channels"
        operations = 2.0 * math.prod(shape) * steps
        saved = operations * sum(
            sign / self._machine.peak_flops(dtype) for sign, dtype in ((1, _WIDE), (-1, _NARROW))
        )
        # The operand is read in float32, and written and read again in half of that.
        moved = 0.0 if is_narrow else 2 * tensor_bytes(call.args[0].ty)
        if saved < moved / self._machine.bandwidth(moved):
            return "rounding takes longer than what it saves"
        return None

    def _is_sooner_by_winograd(self, call: relax.Call) -> bool:
        forms = winograd_forms(call) if call.op.name == "relax.nn.conv2d" else ()
        if not forms or winograd_obstacle(call):
            return False
        gain, _ = self._winograd.fastest(call, forms, _NARROW)
        return gain > _WINOGRAD_GAIN
