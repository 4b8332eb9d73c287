"""LayoutPlanning: the data layout of every convolution, chosen by cost over the whole graph.

The plan comes from ``layout_graph``, which asks ``layout_roles`` for the operators and
``layout_cost`` for the time; it is carried out with ``relax.transform.ConvertLayout``.
"""

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.configs.errors import ConfigError, TvmExtError
from tvm_ext.hardware.cost_model import cost_model
from tvm_ext.hardware.targets import current_description
from tvm_ext.relay_passes.cancel_transposes import cancel_transposes
from tvm_ext.relay_passes.expressions import operator_name, tensor_bytes
from tvm_ext.relay_passes.graph_pass import graph_pass, record_applied, record_refusal
from tvm_ext.relay_passes.layout_cost import (
    LAYOUT_NAMES,
    ChannelLayout,
    DescribedMachine,
    LayoutMachine,
    planned_convolution_seconds,
)
from tvm_ext.relay_passes.layout_graph import (
    FIRST_NODE,
    ConvolutionCost,
    LayoutGraph,
    Leaves,
    PlannedConvolution,
    blocks_of,
    flat,
    is_channels_last,
    is_converted,
    is_described,
    layout_graph,
    least_cost_layouts,
)
from tvm_ext.relay_passes.layout_roles import CONVOLUTIONS, canonical_call
from tvm_ext.relay_passes.spans import describe_origin, relax_functions

# Carries a layout plan out with ``relax.transform.ConvertLayout``.
#
# ConvertLayout decides on the way through a graph: an operator that is no convolution takes the
# layout its first input happens to have. To make it follow a plan, each input that would be in
# the wrong layout gets a pin: for channels first a ``permute_dims`` that moves nothing, whose
# result ConvertLayout always puts back in the original order; for channels last a convolution,
# the only kind of operator that can be told its layout. The pins are taken out afterwards, and
# conversions that cancel with them.


NAME = "LayoutPlanning"

# A layout problem, and for each of its nodes whether it has channels last.
Plan = tuple[LayoutGraph, list[bool]]

# Modelled seconds of a convolution in a layout that a user does not want.
_NEVER = 1e3


class LayoutConversionError(TvmExtError):
    """ConvertLayout raised an error for the module."""


def convert_layouts(mod: tvm.IRModule, plans: Mapping[tvm.ir.GlobalVar, Plan]) -> tvm.IRModule:
    """``mod`` with the convolutions of each function in the layouts of its plan.

    A plan is a function's layout problem and, for each of its nodes, whether it has channels last.

    Raises
    ------
    LayoutConversionError
        ConvertLayout cannot handle the module.
    """
    parts = _Parts(mod, plans)
    pinner = _Pinner(parts.module)
    for global_var, plan in plans.items():
        pinner.start(*plan)
        for part in parts.of(global_var):
            pinner.builder_.update_func(part, pinner.visit_expr(parts.module[part]))
    pinned = pinner.builder_.get()

    def desired_layouts(call: relax.Call) -> dict[str, list[str]]:
        layout = pinner.desired.get(call)
        if layout is None:
            return {}
        name = operator_name(call)
        return {name: list(LAYOUT_NAMES[CONVOLUTIONS[name]][layout])}

    try:
        converted = relax.transform.ConvertLayout({}, desired_layouts)(pinned)
    except (RuntimeError, TypeError, ValueError) as error:
        # The three that errors of TVM's C++ code arrive as; InternalError is a RuntimeError.
        raise LayoutConversionError(
            "layouts cannot be changed around it; expected operators that take either: they stay "
            "as they are"
        ) from error
    unpinner = _Unpinner(converted, pinner.pin_weights)
    for part in parts.module.get_global_vars():
        unpinner.builder_.update_func(part, unpinner.visit_expr(converted[part]))
    whole = parts.put_back(unpinner.builder_.get())
    return cancel_transposes(relax.transform.DeadCodeElimination()(whole))


class _Parts:
    """The parts of dataflow blocks in which a value has channels last, each as a function.

    For every operator ConvertLayout copies what it knows of all values of the block, so that the
    time it takes grows with the square of a block's length. It is given nothing but these parts. A
    function ends in a tuple of the values that are read behind the part; what it reads of those
    ahead of it is free in it.
    """

    def __init__(self, mod: tvm.IRModule, plans: Mapping[tvm.ir.GlobalVar, Plan]) -> None:
        self._mod = mod
        self._places: dict[tvm.ir.GlobalVar, tuple[int, range]] = {}
        self._owners: dict[tvm.ir.GlobalVar, list[tvm.ir.GlobalVar]] = {}
        functions: dict[tvm.ir.GlobalVar, relax.Function] = {}
        for owner, plan in plans.items():
            self._owners[owner] = []
            for block in blocks_of(mod[owner].body):
                for place, function in _parts_of(block, plan):
                    part = tvm.ir.GlobalVar(f"part_{len(functions)}")
                    functions[part] = function
                    self._places[part] = hash(block), place
                    self._owners[owner].append(part)
        self.module = tvm.IRModule(functions)

    def of(self, owner: tvm.ir.GlobalVar) -> list[tvm.ir.GlobalVar]:
        """The parts of a function, in their order."""
        return self._owners[owner]

    def put_back(self, converted: tvm.IRModule) -> tvm.IRModule:
        """The module with the functions of ``converted`` in place of the parts."""
        made: dict[int, list[tuple[range, list[relax.Binding]]]] = {}
        for part, (block, place) in self._places.items():
            kept = self.module[part].body.blocks[0].bindings[-1].value.fields
            made.setdefault(block, []).append((place, _bindings_for(converted[part], kept)))
        whole = _WithParts(self._mod, made)
        for owner in self._owners:
            whole.builder_.update_func(owner, whole.visit_expr(self._mod[owner]))
        return whole.builder_.get()


def _parts_of(block: relax.BindingBlock, plan: Plan) -> list[tuple[range, relax.Function]]:
    """The parts of a block, and where in it they are."""
    if not isinstance(block, relax.DataflowBlock):
        return []
    bindings = block.bindings[:]
    reads = [[hash(var) for var in relax.analysis.free_vars(b.value)[:]] for b in bindings]
    last_read = {var: place for place, variables in enumerate(reads) for var in variables}
    places = _places_of_channels_last(bindings, reads, plan)
    return [(place, _part(bindings, place, last_read)) for place in places]


def _places_of_channels_last(
    bindings: Sequence[relax.Binding], reads: Sequence[Sequence[int]], plan: Plan
) -> list[range]:
    """Where some value has channels last, from the operator that makes it to the last to read it.

    An operator that only shall take channels last is a place too.
    """
    graph, channels_last = plan
    made_at: dict[int, int] = {}
    found: list[range] = []
    for place, (binding, read) in enumerate(zip(bindings, reads, strict=True)):
        touched = [made_at[var] for var in read if var in made_at]
        if any(graph.held_last(n, channels_last) for n in flat(graph.leaves.get(binding.var))):
            made_at[hash(binding.var)] = place
            touched.append(place)
        elif channels_last[graph.wants.get(binding.var, FIRST_NODE)]:
            touched.append(place)
        if touched:
            start = min(touched)
            while found and found[-1].stop > start:
                start = min(start, found.pop().start)
            found.append(range(start, place + 1))
    return found


def _part(
    bindings: Sequence[relax.Binding], place: range, last_read: Mapping[int, int]
) -> relax.Function:
    own = [bindings[n] for n in place]
    kept = [
        var
        for var in (binding.var for binding in own)
        if last_read.get(hash(var), 0) >= place.stop or not isinstance(var, relax.DataflowVar)
    ]
    end = relax.BlockBuilder().normalize(relax.Tuple(kept))
    last = relax.VarBinding(relax.DataflowVar("kept", end.ty), end)
    nothing = relax.BlockBuilder().normalize(relax.Tuple([]))
    body = relax.SeqExpr([relax.DataflowBlock([*own, last])], nothing)
    return relax.Function([], body, nothing.ty)


def _bindings_for(part: relax.Function, kept: Sequence[relax.Var]) -> list[relax.Binding]:
    """The bindings of a part; those that ConvertLayout gave another type keep their variable."""
    *bindings, last = [one for block in part.body.blocks[:] for one in block.bindings[:]]
    pairs = zip(kept, last.value.fields, strict=True)
    renamed = [relax.VarBinding(var, new) for var, new in pairs if not new.same_as(var)]
    return [*bindings, *renamed]


@mutator
class _WithParts(PyExprMutator):
    """Puts other bindings in the place of parts of blocks."""

    def __init__(
        self, mod: tvm.IRModule, parts: Mapping[int, list[tuple[range, list[relax.Binding]]]]
    ) -> None:
        super().__init__(mod)
        self.parts = parts

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        bindings = block.bindings[:]
        for place, made in reversed(self.parts.get(hash(block), [])):
            bindings[place.start : place.stop] = made
        return relax.DataflowBlock(bindings)


@mutator
class _Pinner(PyExprMutator):
    """Adds the pins, and notes for each call of a convolution the layout it shall have."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.desired: dict[relax.Call, ChannelLayout] = {}
        self.pin_weights: list[GenericConst] = []
        self.graph = LayoutGraph()
        self.channels_last: list[bool] = []
        self.convolutions: dict[relax.Var, ChannelLayout] = {}

    def start(self, graph: LayoutGraph, channels_last: list[bool]) -> None:
        """Takes up the plan of the function that is visited next."""
        self.graph, self.channels_last = graph, channels_last
        self.convolutions = {
            convolution.var: ChannelLayout(channels_last[convolution.node])
            for convolution in graph.convolutions
        }

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var = binding.var
        if var in self.convolutions:
            layout = self.convolutions[var]
            call = self._emit(var, self.visit_expr(binding.value), layout)
            self.desired[call] = layout
        elif var in self.graph.wants:
            layout = ChannelLayout(self.channels_last[self.graph.wants[var]])
            call = canonical_call(binding.value)
            args = [self._pinned(arg, layout) for arg in call.args]
            self._emit(var, relax.Call(call.op, args, call.attrs, call.ty_args, call.span), layout)
        else:
            super().visit_var_binding_(binding)

    def _emit(self, var: relax.Var, call: relax.Expr, layout: ChannelLayout) -> relax.Call:
        """Binds ``var`` to ``call``; a result with channels last by way of an inner variable.

        ConvertLayout would bind the call to a variable of its own, without origin, and give
        ``var`` to the conversion.
        """
        call = self.builder_.normalize(call)
        if isinstance(var, relax.DataflowVar) or layout is ChannelLayout.CHANNELS_FIRST:
            self.builder_.emit_normalized(relax.VarBinding(var, call))
            return call
        inner = relax.DataflowVar(var.name, var.ty, var.span)
        self.builder_.emit_normalized(relax.VarBinding(inner, call))
        self.builder_.emit_normalized(relax.VarBinding(var, inner))
        return call

    def _pinned(self, arg: relax.Expr, layout: ChannelLayout) -> relax.Expr:
        """``arg`` as an operator reads it that wants its inputs in ``layout``."""
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self._pinned(part, layout) for part in arg.fields])
        new_arg = self.visit_expr(arg)
        if isinstance(arg, GenericConst):
            return self._pin(new_arg, layout) if layout is ChannelLayout.CHANNELS_LAST else new_arg
        return self._pinned_leaves(new_arg, self.graph.leaves.get(arg), layout)

    def _pinned_leaves(
        self, value: relax.Expr, leaves: Leaves, layout: ChannelLayout
    ) -> relax.Expr:
        is_last = layout is ChannelLayout.CHANNELS_LAST
        if all(self.graph.held_last(n, self.channels_last) is is_last for n in flat(leaves)):
            return value
        if not isinstance(leaves, list):
            return self._pin(value, layout)
        parts = [self.builder_.emit(relax.TupleGetItem(value, i)) for i in range(len(leaves))]
        return relax.Tuple(
            [
                self._pinned_leaves(part, part_leaves, layout)
                for part, part_leaves in zip(parts, leaves, strict=True)
            ]
        )

    def _pin(self, value: relax.Expr, layout: ChannelLayout) -> relax.Expr:
        ndim = value.ty.ndim
        if ndim not in LAYOUT_NAMES:
            return value
        if layout is ChannelLayout.CHANNELS_FIRST:
            return self.builder_.emit(relax.op.permute_dims(value, list(range(ndim))))
        channels = int(value.ty.shape[1])
        shape = (channels,) + (1,) * (ndim - 1)
        weight = GenericConst(
            tvm.runtime.empty(shape, value.ty.dtype), relax.TensorType(shape, value.ty.dtype)
        )
        self.pin_weights.append(weight)
        name = next(name for name, rank in CONVOLUTIONS.items() if rank == ndim)
        convolve = getattr(relax.op.nn, name.rsplit(".", 1)[1])
        call = self.builder_.normalize(convolve(value, weight, groups=channels))
        self.desired[call] = layout
        pin = relax.DataflowVar("pin", call.ty)
        self.builder_.emit_normalized(relax.VarBinding(pin, call))
        return pin


@mutator
class _Unpinner(PyExprMutator):
    """Replaces the convolutions that are pins by their input."""

    def __init__(self, mod: tvm.IRModule, pin_weights: list[GenericConst]) -> None:
        super().__init__(mod)
        self.pin_weights = set(pin_weights)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        call = binding.value
        if operator_name(call) not in CONVOLUTIONS or not self._is_pin(call):
            super().visit_var_binding_(binding)
            return
        source = self.visit_expr(call.args[0])
        self.set_var_remap(binding.var, source)

    def _is_pin(self, call: relax.Call) -> bool:
        weight = call.args[1]
        while not isinstance(weight, GenericConst):
            value = self.lookup_binding(self.visit_expr(weight))
            if operator_name(value) != "relax.permute_dims":
                return False
            weight = value.args[0]
        return weight in self.pin_weights


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
    target, or this machine. ``convolution_cost`` models one convolution. ``layout``, which is
    "channels_first" or "channels_last", states the layout of all convolutions that can have it:
    conv1d (NWC, WIO) and conv3d (NDHWC, DHWIO) as well. A symbolic batch counts as one,
    symbolic image sizes as those of a common image.

    Leaves alone: convolutions that have channels last or a blocked layout already, symbolic
    channels, transposed convolutions (TVM lowers NCHW only), what is outside of dataflow blocks or
    in a function that is fused already; a module that ConvertLayout cannot handle, or that would
    become slower with it.

    Run after: DecomposeOpsForInference, FoldConstantCalls and fusions that match NCHW operators.
    Run before: legalisation.
    """

    machine: LayoutMachine | None = None
    convolution_cost: ConvolutionCost = planned_convolution_seconds
    layout: str = ""

    def __post_init__(self) -> None:
        if self.layout.upper() not in ("", *ChannelLayout.__members__):
            raise ConfigError(
                f"option 'layout' of LayoutPlanning is '{self.layout}'; expected 'channels_first' "
                "or 'channels_last', or leave it out"
            )

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The module in the chosen layouts; ``mod`` itself where that changes nothing."""
        if not any(_has_convolutions(func) for func in _planned_functions(mod).values()):
            return mod
        machine = self.machine
        if machine is None:
            description = current_description()
            machine = DescribedMachine(description, cost_model(description))
        cost = _stated(self.layout, self.convolution_cost)
        return _LayoutPlanner(machine, cost).run(mod)


def _stated(layout: str, convolution_cost: ConvolutionCost) -> ConvolutionCost:
    """The cost with which all convolutions get ``layout``; the given one where that is empty."""
    if not layout:
        return convolution_cost
    wanted = ChannelLayout[layout.upper()]

    def cost(call: relax.Call, asked: ChannelLayout, machine: LayoutMachine) -> float:
        return convolution_cost(call, asked, machine) + (0.0 if asked is wanted else _NEVER)

    return cost


class _LayoutPlanner:
    def __init__(self, machine: LayoutMachine, convolution_cost: ConvolutionCost) -> None:
        self.machine = machine
        self.convolution_cost = convolution_cost

    def run(self, mod: tvm.IRModule) -> tvm.IRModule:
        plans: dict[tvm.ir.GlobalVar, Plan] = {}
        for global_var, func in _planned_functions(mod).items():
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
            layout = ChannelLayout(is_channels_last(binding.value))
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
    return "/".join(LAYOUT_NAMES[ndim][ChannelLayout.CHANNELS_LAST])


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"


def _has_convolutions(func: relax.Function) -> bool:
    return any(
        "relax.nn.conv" in operator_name(binding.value)
        for block in blocks_of(func.body)
        for binding in block.bindings
    )


def _planned_functions(mod: tvm.IRModule) -> dict[tvm.ir.GlobalVar, relax.Function]:
    """The functions to plan: not those that stand for one kernel already."""
    fused = ("Primitive", "Composite", "Codegen")
    return {
        global_var: func
        for global_var, func in relax_functions(mod).items()
        if not any(name in (func.attrs or {}) for name in fused)
    }
