"""Rounds the width of channels-first outputs up to whole vectors where lanes would stay empty."""

from typing import Any

import tvm
from tvm import relax, te, topi

from tvm_ext.hardware.cpu.description import CpuDescription, current_cpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.pad_output_channels import (
    LEAST_GAIN,
    cropped,
    lane_use,
    whole_vectors,
)

_LAYOUTS = {"relax.nn.conv1d": ("NCW", "OIW"), "relax.nn.conv2d": ("NCHW", "OIHW")}


@graph_pass
class PadOutputWidth:
    """Computes wider rows of a channels-first convolution than asked for, to fill vectors.

    Before: ``conv2d(x, W)`` in NCHW, 62 columns: divisible by 2 lanes of 16, not by 16
    After:  one kernel that pads ``x`` by two columns more on the right, convolves to 64 columns,
            and writes the first 62

    Share of useful lanes: of the best divisor of the width, before; width over padded width, after.

    Leaves alone: channels-last layouts (see PadOutputChannels); strides and groups; widths that
    fill vectors well enough; symbolic shapes; targets without vectors of a fixed length.

    Run after: LayoutPlanning. Run before: LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when nothing gains."""
        machine = current_cpu()
        return mod if machine is None else _Padder(machine).run(mod)


class _Padder(BindingRewriter):
    pass_name = "PadOutputWidth"
    roots = frozenset(_LAYOUTS)

    def __init__(self, machine: CpuDescription) -> None:
        self.machine = machine

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, *_LAYOUTS)
        if call is None or not _is_plain(call):
            return None
        shape = var.ty.shape
        if not isinstance(shape, relax.ShapeExpr):
            self.refuse("its shape is not known", var)
            return None
        width = shape[-1]
        if not isinstance(width, tvm.tirx.IntImm):
            self.refuse("its width is symbolic", var)
            return None
        columns = int(width)
        lanes = self.machine.vector_lanes(str(var.ty.dtype))
        now, padded = lane_use(columns, lanes)
        if padded < LEAST_GAIN * now:
            return None
        computed = whole_vectors(columns, lanes)
        replacement = self.builder.call_te(
            lambda x, w: cropped(_wider(call, x, w, computed - columns), columns),
            *call.args,
            primfunc_name_hint=f"{str(call.op.name).rsplit('.', 1)[-1]}_padded",
        )
        what = (
            f"{columns} output columns computed as {computed}: {100 * columns / computed:.0f} % of "
            f"the vector lanes useful instead of {100 * now:.0f} %"
        )
        return Replacement(replacement, (), what)


def _is_plain(call: relax.Call) -> bool:
    attrs: Any = call.attrs
    layouts = _LAYOUTS[str(call.op.name)]
    found = (str(attrs.data_layout), str(attrs.kernel_layout))
    same_out = str(attrs.out_layout) == layouts[0]
    ones = [*attrs.strides, attrs.groups]
    return found == layouts and same_out and all(int(one) == 1 for one in ones)


def _wider(call: relax.Call, x: te.Tensor, w: te.Tensor, extra: int) -> te.Tensor:
    """The convolution with ``extra`` columns of zeros more on the right."""
    attrs: Any = call.attrs
    # Begins of all sides, then ends: columns come last in both.
    padding = [int(pad) for pad in attrs.padding]
    padding[-1] += extra
    layouts = _LAYOUTS[str(call.op.name)]
    strides, dilation = ([int(n) for n in values] for values in (attrs.strides, attrs.dilation))
    return topi.nn.conv(x, w, strides, padding, dilation, 1, *layouts, str(call.ty.dtype))
