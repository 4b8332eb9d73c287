"""Graph pass that chooses the data layout of every convolution, by cost over the whole graph."""

import tvm
from tvm import relax

from tvm_ext.hardware.roofline import cost_model
from tvm_ext.hardware.targets import current_description
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.layout_conversion import LayoutConversionError, convert_layouts
from tvm_ext.relay_passes.layout_cost import (
    LAYOUT_NAMES,
    DescribedMachine,
    Layout,
    LayoutMachine,
    tensor_bytes,
)
from tvm_ext.relay_passes.layout_cost_gpu import planned_convolution_seconds
from tvm_ext.relay_passes.layout_graph import (
    ConvolutionCost,
    LayoutGraph,
    PlannedConvolution,
    blocks_of,
    is_channels_last,
    is_described,
    layout_graph,
)
from tvm_ext.relay_passes.layout_roles import CONVOLUTIONS
from tvm_ext.relay_passes.layout_solver import is_converted, least_cost_layouts
from tvm_ext.relay_passes.operator_name import operator_name
from tvm_ext.relay_passes.origin import describe_origin
from tvm_ext.relay_passes.pass_log import record_applied, record_refusal

NAME = "LayoutPlanning"

Plan = tuple[LayoutGraph, list[bool]]


@graph_pass
class LayoutPlanning:
    """Puts convolutions in channels last where that is faster, conversions included.

    Before::  y = conv2d(x, w); z = relu(y)                      NCHW, OIHW
    After::   t = permute_dims(x, [0, 2, 3, 1])
              y = conv2d(t, w'); z' = relu(y)                    NHWC, HWIO; w' is a constant
              z = permute_dims(z', [0, 3, 1, 2])

    The choice is one minimum cut for each function, so it is the cheapest one under the model: the
    modelled seconds of each convolution in either layout, and of each conversion of a tensor, paid
    once for all who read it. ``machine`` answers for the times; without it, it is the current TVM
    target, or this machine. ``convolution_cost`` models one convolution. conv1d (NWC, WIO) and
    conv3d (NDHWC, DHWIO) as well. Symbolic batch and image sizes count as DEFAULT_BATCH and
    DEFAULT_SIDE of layout_cost.

    Leaves alone: convolutions that have channels last or a blocked layout already, symbolic
    channels, transposed convolutions (TVM lowers NCHW only), what is outside of dataflow blocks or
    in a function that is fused already; a module that ConvertLayout cannot handle, or that would
    become slower with it.

    Run after: DecomposeOpsForInference, FoldConstantCalls and fusions that match NCHW operators.
    Run before: legalisation.
    """

    machine: LayoutMachine | None = None
    convolution_cost: ConvolutionCost = planned_convolution_seconds

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The module in the chosen layouts; ``mod`` itself where that changes nothing."""
        if not any(_convolutions(func) for func in _relax_functions(mod).values()):
            return mod
        planner = _Planner(self.machine or _current_machine(), self.convolution_cost)
        return planner.run(mod)


class _Planner:
    def __init__(self, machine: LayoutMachine, convolution_cost: ConvolutionCost) -> None:
        self.machine = machine
        self.convolution_cost = convolution_cost

    def run(self, mod: tvm.IRModule) -> tvm.IRModule:
        plans: dict[tvm.ir.GlobalVar, Plan] = {}
        for global_var, func in _relax_functions(mod).items():
            graph = layout_graph(func, self.machine, self.convolution_cost)
            channels_last = least_cost_layouts(graph.problem)
            _record_refusals(graph, channels_last)
            if any(channels_last[convolution.node] for convolution in graph.convolutions):
                plans[global_var] = graph, channels_last
        return self._applied(mod, plans) if plans else mod

    def _applied(self, mod: tvm.IRModule, plans: dict[tvm.ir.GlobalVar, Plan]) -> tvm.IRModule:
        where = ", ".join(global_var.name_hint for global_var in plans)
        try:
            converted = convert_layouts(mod, plans)
        except LayoutConversionError as error:
            record_refusal(NAME, where, str(error))
            return mod
        before = {name: self._modelled(mod[name]) for name in plans}
        after = {name: self._modelled(converted[name]) for name in plans}
        if sum(after.values()) >= sum(before.values()):
            seconds = f"{_us(sum(after.values()))} after, {_us(sum(before.values()))} before"
            record_refusal(NAME, where, f"conversion does not pay: {seconds} (modelled)")
            return mod
        for global_var, plan in plans.items():
            _record_plan(global_var, plan, before[global_var] - after[global_var])
        return converted

    def _modelled(self, func: relax.Function) -> float:
        """Modelled seconds of all convolutions and transposes of ``func``, in their layouts."""
        return sum(
            self._binding_seconds(binding)
            for block in blocks_of(func.body)
            for binding in block.bindings
        )

    def _binding_seconds(self, binding: relax.Binding) -> float:
        name = operator_name(binding.value)
        if name == "relax.permute_dims" and isinstance(binding.var.ty.shape, relax.ShapeExpr):
            return self.machine.conversion_seconds(tensor_bytes(binding.var.ty))
        if name in CONVOLUTIONS and is_described(binding.value):
            layout = Layout(is_channels_last(binding.value))
            return self.convolution_cost(binding.value, layout, self.machine)
        return 0.0


def _record_plan(global_var: tvm.ir.GlobalVar, plan: Plan, gain: float) -> None:
    graph, channels_last = plan
    chosen = [item for item in graph.convolutions if channels_last[item.node]]
    for item in chosen:
        record_applied(
            NAME,
            describe_origin(item.var),
            f"{_layout_names(item)}: {_us(item.last)} instead of {_us(item.first)} (modelled)",
        )
    conversions = sum(is_converted(tensor, channels_last) for tensor in graph.problem.tensors)
    record_applied(
        NAME,
        global_var.name_hint,
        f"{len(chosen)} of {len(graph.convolutions)} convolutions have channels last, with "
        f"{conversions} conversions; saves {_us(gain)} (modelled)",
    )


def _record_refusals(graph: LayoutGraph, channels_last: list[bool]) -> None:
    for var, reason in graph.refused:
        record_refusal(NAME, describe_origin(var), reason)
    for item in graph.convolutions:
        if not channels_last[item.node] and item.last < item.first:
            record_refusal(NAME, describe_origin(item.var), _too_dear(item, graph, channels_last))


def _too_dear(item: PlannedConvolution, graph: LayoutGraph, channels_last: list[bool]) -> str:
    """Why ``item`` alone keeps channels first, with its conversions at the rest of the plan."""
    flipped = list(channels_last)
    flipped[item.node] = True
    gain = item.first - item.last
    extra = graph.problem.total(flipped) - graph.problem.total(channels_last) + gain
    return (
        f"{_layout_names(item)} would save {_us(gain)}, conversions would cost {_us(extra)} "
        "(modelled)"
    )


def _layout_names(item: PlannedConvolution) -> str:
    ndim = CONVOLUTIONS[operator_name(item.call)]
    return "/".join(LAYOUT_NAMES[ndim][Layout.CHANNELS_LAST])


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"


def _convolutions(func: relax.Function) -> bool:
    return any(
        "relax.nn.conv" in operator_name(binding.value)
        for block in blocks_of(func.body)
        for binding in block.bindings
    )


def _relax_functions(mod: tvm.IRModule) -> dict[tvm.ir.GlobalVar, relax.Function]:
    """The functions to plan: not those that stand for one kernel already."""
    return {
        global_var: func
        for global_var, func in mod.functions.items()
        if isinstance(func, relax.Function) and not _is_fused(func)
    }


def _is_fused(func: relax.Function) -> bool:
    return func.attrs is not None and any(
        name in func.attrs for name in ("Primitive", "Composite", "Codegen")
    )


def _current_machine() -> LayoutMachine:
    description = current_description()
    return DescribedMachine(description, cost_model(description))
