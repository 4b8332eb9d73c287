"""FlattenPointwise: rows of pixels as one row where a row does not fill the vectors."""

from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_ext.hardware.cpu.description import CpuDescription, current_cpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.expressions import item_obstacle, item_shape, static_shape
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.pad_output_channels import lane_use

_LAYOUTS = {"relax.nn.conv2d": ("NCHW", "OIHW"), "relax.nn.conv3d": ("NCDHW", "OIDHW")}


@graph_pass
class FlattenPointwise:
    """Sees the pixels of a channels-first pointwise convolution as one long row.

    Before: ``y = conv2d(x, W)``, W: [O, I, 1, 1], y: [1, O, 14, 14]: 7 or 14 columns a vector
    After:  ``v = conv1d(reshape(x), W); y = reshape(v, [1, O, 14, 14])``, v: [1, O, 196]

    A pixel of the result needs the same pixel of the input only, so that rows need not be kept
    apart; reshapes are views. Done where more of the vectors' lanes become useful, or tiles two
    vectors wide; and where the input does not stay in L2: of one row, columns are copied next to
    each other (column_panel).

    Leaves alone: kernels larger than one pixel, strides, padding, groups; other layouts than
    channels first; unknown and symbolic shapes; targets without vectors of a fixed length.

    Run after: LayoutPlanning. Run before: SinkReshapes, PadOutputWidth.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing gains."""
        machine = current_cpu()
        return mod if machine is None else _Flattener(machine).run(mod)


class _Flattener(BindingRewriter):
    pass_name = "FlattenPointwise"
    roots = frozenset(_LAYOUTS)

    def __init__(self, machine: CpuDescription) -> None:
        self.machine = machine

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, *_LAYOUTS)
        if call is None or not is_pointwise(call):
            return None
        x, weight = call.args
        if obstacle := item_obstacle(x, weight, var):
            self.refuse(obstacle, var)
            return None
        data, kernel, made = (item_shape(expr) or [] for expr in (x, weight, var))
        pixels, columns = prod(made[2:]), made[-1]
        lanes = self.machine.vector_lanes(str(var.ty.dtype))
        before, after = max(lane_use(columns, lanes)), max(lane_use(pixels, lanes))
        is_large = prod(data) * tvm.DataType(str(x.ty.dtype)).bits // 8 > self.machine.l2_bytes // 2
        in_pairs = columns % (2 * lanes) != 0 and pixels % (2 * lanes) == 0
        if after < before or (after == before and not is_large and not in_pairs):
            return None
        flat_x = relax.op.reshape(x, [x.ty.shape[0], data[1], pixels])
        flat = relax.op.nn.conv1d(
            self.bind(flat_x, var),
            self._flat_weight(weight, kernel[:2], var),
            data_layout="NCW",
            kernel_layout="OIW",
            out_dtype=str(var.ty.dtype),
        )
        what = (
            f"{made[-2]} rows of {columns} columns computed as one of {pixels}: "
            f"{100 * after:.0f} % of the vector lanes useful, {100 * before:.0f} % before"
        )
        return Replacement(relax.op.reshape(self.bind(flat, var), var.ty.shape), (), what)

    def _flat_weight(self, weight: relax.Expr, channels: list[int], var: relax.Var) -> relax.Expr:
        if isinstance(weight, GenericConst):
            return relax.const(weight.value.numpy().reshape([*channels, 1]), str(weight.ty.dtype))
        return self.bind(relax.op.reshape(weight, [*channels, 1]), var)


def is_pointwise(call: relax.Call) -> bool:
    """Whether a convolution with channels first takes one pixel for each pixel of its result."""
    attrs: Any = call.attrs
    layouts = _LAYOUTS[str(call.op.name)]
    if (str(attrs.data_layout), str(attrs.kernel_layout)) != layouts:
        return False
    if str(attrs.out_layout) != layouts[0] or int(attrs.groups) != 1:
        return False
    steps, padding = [int(n) for n in attrs.strides], [int(n) for n in attrs.padding]
    taps = static_shape(call.args[1])
    return taps is not None and not any(padding) and all(n == 1 for n in (*steps, *taps[2:]))
