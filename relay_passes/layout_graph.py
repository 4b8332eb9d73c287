"""The layout problem of a Relax function, its operators and tensors, and its exact solution.

Inputs and results of the function, operators without layout inference, and everything outside
of dataflow blocks keep channels first. A ``permute_dims`` that moves the channels to the end
wants its input in channels last, where it is no work; one that moves them back makes channels
last. ``least_cost_layouts`` solves the problem exactly, as a minimum cut.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_ext.relay_passes.expressions import tensor_bytes
from tvm_ext.relay_passes.flow_network import FlowNetwork
from tvm_ext.relay_passes.layout_cost import (
    LAYOUT_NAMES,
    ChannelLayout,
    LayoutMachine,
)
from tvm_ext.relay_passes.layout_roles import (
    CHANNELS_FIRST_ONLY,
    CONVOLUTIONS,
    Role,
    conversion_axes,
    infers_layout,
    is_planned,
    operator_name,
    permutation_of,
    role_of,
)

# Chooses one of two layouts for every operator of a graph at the least total cost, exactly.
#
# The cost of a choice is the operators' own costs, plus for every tensor that some consumer wants
# in the other layout than its producer makes one conversion, however many such consumers there
# are. With two layouts this is a minimum s-t cut, which is exact in polynomial time for a whole
# graph, so neither dynamic programming over chains nor a greedy rule for large graphs is needed:
# D. Greig, B. Porteous, A. Seheult, "Exact maximum a posteriori estimation for binary images", J.
# R. Stat. Soc. B 51(2), 1989; which costs can be written as a cut: V. Kolmogorov, R. Zabih, "What
# energy functions can be minimized via graph cuts?", IEEE TPAMI 26(2), 2004.


# The two nodes whose layout is given. They are the source and the sink of the cut.
FIRST_NODE = 0
LAST_NODE = 1

# Costs are counted in this many parts of the sum of all that may be cut.
_SCALE = 2**52


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor made by node ``producer``; ``conversion`` is what its other layout costs."""

    producer: int
    consumers: set[int]
    conversion: float


@dataclass
class LayoutProblem:
    """Operators, by number from 2, with their costs in seconds, and the tensors between them.

    Attributes
    ----------
    costs : list of (float, float)
        Cost of node i with channels first and with channels last. The entries of ``FIRST_NODE``
        and ``LAST_NODE`` are (0, 0); their layout is fixed.
    tensors : list of PlannedTensor
        What flows between the nodes.
    """

    costs: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0), (0.0, 0.0)])
    tensors: list[PlannedTensor] = field(default_factory=list)

    def add_node(self, first: float = 0.0, last: float = 0.0) -> int:
        """A new operator that costs ``first`` or ``last`` seconds; returns its number."""
        self.costs.append((first, last))
        return len(self.costs) - 1

    def total(self, channels_last: list[bool]) -> float:
        """Cost in seconds of the choice ``channels_last``, one entry for each node."""
        operators = sum(costs[last] for costs, last in zip(self.costs, channels_last, strict=True))
        return operators + sum(
            tensor.conversion for tensor in self.tensors if is_converted(tensor, channels_last)
        )


def is_converted(tensor: PlannedTensor, channels_last: list[bool]) -> bool:
    """Whether some consumer wants ``tensor`` in the other layout than its producer makes."""
    made = channels_last[tensor.producer]
    return any(channels_last[consumer] != made for consumer in tensor.consumers)


def least_cost_layouts(problem: LayoutProblem) -> list[bool]:
    """Whether each node has channels last in a choice of the least cost.

    Among several such choices it is the one with the fewest nodes in channels last. Costs are
    resolved to a part in 2^52 of the sum of the conversions and of what the operators can save.
    """
    edges = [edge for edge in _edges(problem) if edge[0] != LAST_NODE and edge[1] != FIRST_NODE]
    total = sum(capacity for _, _, capacity in edges if capacity is not None)
    if total <= 0:
        return [node == LAST_NODE for node in range(len(problem.costs))]
    network = FlowNetwork()
    for tail, head, capacity in edges:
        # More than all that may be cut: a cut through it is never the least one.
        network.add_edge(
            tail, head, 2 * _SCALE if capacity is None else _resolved(capacity * _SCALE / total)
        )
    chosen = network.sink_side(FIRST_NODE, LAST_NODE)
    return [node in chosen for node in range(len(problem.costs))]


def _resolved(capacity: float) -> int:
    """A whole number that is 0 only for 0, so that no conversion looks free."""
    return max(1, round(capacity)) if capacity > 0 else 0


def _edges(problem: LayoutProblem) -> Iterator[tuple[int, int, float | None]]:
    """Edges (tail, head, capacity) of the cut network; None is a capacity that may not be cut.

    An edge is paid for when its tail has channels first and its head channels last.
    """
    # A node that saves more than all conversions cost gets its way, however much more it is.
    most = 2 * sum(tensor.conversion for tensor in problem.tensors) or math.inf
    for node, (first, last) in enumerate(problem.costs):
        if node not in (FIRST_NODE, LAST_NODE):
            yield FIRST_NODE, node, min(max(0.0, last - first), most)
            yield node, LAST_NODE, min(max(0.0, first - last), most)
    helper = len(problem.costs)
    for tensor in problem.tensors:
        consumers = tensor.consumers - {tensor.producer}
        if len(consumers) == 1:
            (consumer,) = consumers
            yield tensor.producer, consumer, tensor.conversion
            yield consumer, tensor.producer, tensor.conversion
        elif consumers:
            # helper: does anyone want channels last; helper + 1: does anyone want them first.
            yield tensor.producer, helper, tensor.conversion
            yield helper + 1, tensor.producer, tensor.conversion
            for consumer in sorted(consumers):
                yield helper, consumer, None
                yield consumer, helper + 1, None
            helper += 2


_KNOWN_LAYOUTS = {data for names in LAYOUT_NAMES.values() for data, _ in names}

ConvolutionCost = Callable[[relax.Call, ChannelLayout, LayoutMachine], float]

# The tensors in a value: the number of one, None for what has no layout, or those of a tuple.
Leaves: TypeAlias = "int | list[Leaves] | None"


@dataclass(frozen=True)
class PlannedConvolution:
    """A convolution whose layout is free, and its modelled seconds in either layout."""

    var: relax.Var
    call: relax.Call
    node: int
    first: float
    last: float


@dataclass
class LayoutGraph:
    """A layout problem with what it needs to be carried out in the function.

    Attributes
    ----------
    convolutions : list of PlannedConvolution
        Those with a free layout.
    refused : list of (relax.Var, str)
        Those without, with the reason.
    wants : dict of relax.Var to int
        By the variable of an operator other than a convolution: the node whose layout the
        operator's inputs must have.
    leaves : dict of relax.Var to Leaves
        By variable: the numbers in ``problem.tensors`` of its tensors.
    transposed : set of int
        The numbers of tensors that a ``permute_dims`` makes from channels last: for the plan they
        have channels last, for ConvertLayout the order they are written in.
    """

    problem: LayoutProblem = field(default_factory=LayoutProblem)
    convolutions: list[PlannedConvolution] = field(default_factory=list)
    refused: list[tuple[relax.Var, str]] = field(default_factory=list)
    wants: dict[relax.Var, int] = field(default_factory=dict)
    leaves: dict[relax.Var, Leaves] = field(default_factory=dict)
    transposed: set[int] = field(default_factory=set)

    def held_last(self, number: int, channels_last: list[bool]) -> bool:
        """Whether ConvertLayout will have the tensor ``number`` in channels last."""
        producer = self.problem.tensors[number].producer
        return number not in self.transposed and channels_last[producer]


def layout_graph(
    func: relax.Function, machine: LayoutMachine, convolution_cost: ConvolutionCost
) -> LayoutGraph:
    """The layout problem of ``func``; times are modelled seconds on ``machine``."""
    return _LayoutGraphReader(machine, convolution_cost).read(func)


def refusal_of(call: relax.Call) -> str:
    """Why the convolution ``call`` keeps its layout; empty when the layout is free."""
    name = operator_name(call)
    if name in CHANNELS_FIRST_ONLY:
        return "transposed convolution has no channels-last lowering"
    attrs, ndim = call.attrs, CONVOLUTIONS[name]
    names = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    data, weight = LAYOUT_NAMES[ndim][ChannelLayout.CHANNELS_FIRST]
    if names != (data, weight, data):
        return f"layout {' '.join(names)} is not {data} {weight} {data}"
    if not all(isinstance(ty.shape, relax.ShapeExpr) for ty in _types(call)):
        return "shape unknown"
    if not is_planned(call.args[0].ty) or not is_described(call):
        return "symbolic channels or kernel"
    return ""


def is_described(call: relax.Call) -> bool:
    """Whether a convolution has known ranks, channels and kernel, so that its cost is defined."""
    if not all(isinstance(ty.shape, relax.ShapeExpr) for ty in _types(call)):
        return False
    if str(call.attrs.data_layout) not in _KNOWN_LAYOUTS:
        return False
    return all(isinstance(extent, tvm.tirx.IntImm) for extent in call.args[1].ty.shape)


def is_channels_last(call: relax.Call) -> bool:
    """Whether a convolution has channels last already."""
    return str(call.attrs.data_layout) == LAYOUT_NAMES[CONVOLUTIONS[operator_name(call)]][1][0]


def _types(call: relax.Call) -> list[relax.TensorType]:
    return [call.args[0].ty, call.args[1].ty, call.ty]


def blocks_of(expr: relax.Expr) -> Iterator[relax.BindingBlock]:
    """The binding blocks of a function body, those in branches after the block that has them."""
    if isinstance(expr, relax.If):
        yield from blocks_of(expr.true_branch)
        yield from blocks_of(expr.false_branch)
    elif isinstance(expr, relax.SeqExpr):
        for block in expr.blocks[:]:
            yield block
            for binding in block.bindings[:]:
                if isinstance(binding.value, relax.If):
                    yield from blocks_of(binding.value)


def flat(leaves: Leaves) -> list[int]:
    """The numbers of all tensors in ``leaves``."""
    if isinstance(leaves, list):
        return [number for part in leaves for number in flat(part)]
    return [] if leaves is None else [leaves]


class _LayoutGraphReader:
    def __init__(self, machine: LayoutMachine, convolution_cost: ConvolutionCost) -> None:
        self.machine = machine
        self.convolution_cost = convolution_cost
        self.graph = LayoutGraph()
        self.tensors = self.graph.problem.tensors
        self.results: list[relax.Expr] = []

    def read(self, func: relax.Function) -> LayoutGraph:
        self.results = [func.body]
        for block in blocks_of(func.body):
            convertible = isinstance(block, relax.DataflowBlock)
            for binding in block.bindings:
                self._read_binding(binding, convertible)
        for result in self.results:
            self._consume(result.body, FIRST_NODE)
        return self.graph

    def _read_binding(self, binding: relax.Binding, convertible: bool) -> None:
        var, value = binding.var, binding.value
        if operator_name(value) in CONVOLUTIONS or operator_name(value) in CHANNELS_FIRST_ONLY:
            self._read_convolution(var, value, convertible)
        elif convertible and operator_name(value):
            self._read_operator(var, value)
        elif convertible and isinstance(var, relax.DataflowVar) and _is_regrouped(binding):
            self.graph.leaves[var] = self._regrouped(value)
            if self.graph.leaves[var] is None:
                self._produce(var, FIRST_NODE)
        else:
            if isinstance(value, relax.If):
                self.results += [value.true_branch, value.false_branch]
            self._consume(value, FIRST_NODE)
            self._produce(var, FIRST_NODE)

    def _read_convolution(self, var: relax.Var, call: relax.Call, convertible: bool) -> None:
        reason = refusal_of(call)
        if not reason and not convertible:
            reason = "outside of a dataflow block, where layouts are not converted"
        if reason:
            if operator_name(call) in CHANNELS_FIRST_ONLY or not is_channels_last(call):
                self.graph.refused.append((var, reason))
            self._read_fixed(var, call, convertible)
            return
        first = self.convolution_cost(call, ChannelLayout.CHANNELS_FIRST, self.machine)
        last = self.convolution_cost(call, ChannelLayout.CHANNELS_LAST, self.machine)
        data, weight = call.args
        if not isinstance(weight, GenericConst):
            last += self.machine.conversion_seconds(tensor_bytes(weight.ty))
        node = self.graph.problem.add_node(first, last)
        self.graph.convolutions.append(PlannedConvolution(var, call, node, first, last))
        self._consume(data, node)
        self._consume(weight, FIRST_NODE)
        self._produce(var, node)

    def _read_operator(self, var: relax.Var, call: relax.Call) -> None:
        if operator_name(call) == "relax.permute_dims":
            self._read_permutation(var, call)
            return
        role = role_of(call)
        if role is Role.OPAQUE:
            self._read_fixed(var, call, True)
            return
        node = self.graph.problem.add_node()
        self.graph.wants[var] = node
        for arg in call.args:
            self._consume(arg, node)
        self._produce(var, node if role is Role.FOLLOWS else FIRST_NODE)

    def _read_permutation(self, var: relax.Var, call: relax.Call) -> None:
        taken, made = FIRST_NODE, FIRST_NODE
        if is_planned(call.args[0].ty) and is_planned(call.ty):
            axes = permutation_of(call)
            to_first = axes == conversion_axes(len(axes), ChannelLayout.CHANNELS_FIRST)
            to_last = axes == conversion_axes(len(axes), ChannelLayout.CHANNELS_LAST)
            # With one spatial axis both are the same: what never has channels last is turned back.
            if to_first and (not to_last or self._is_fixed(call.args[0])):
                made = LAST_NODE
            elif to_last:
                taken = LAST_NODE
        self._consume(call.args[0], taken)
        self._produce(var, made)
        if made == LAST_NODE:
            self.graph.transposed.update(flat(self.graph.leaves[var]))

    def _is_fixed(self, value: relax.Expr) -> bool:
        """Whether all tensors in ``value`` are made in channels first, whatever the plan."""
        numbers = flat(self._regrouped(value))
        return all(self.tensors[number].producer == FIRST_NODE for number in numbers)

    def _read_fixed(self, var: relax.Var, call: relax.Call, convertible: bool) -> None:
        """An operator that takes and makes channels first, or a convolution that stays as it is."""
        if convertible and infers_layout(operator_name(call)):
            self.graph.wants[var] = FIRST_NODE
        self._consume(call, FIRST_NODE)
        self._produce(var, FIRST_NODE)

    def _produce(self, var: relax.Var, node: int) -> None:
        self.graph.leaves[var] = self._new_leaves(var.ty, node)

    def _new_leaves(self, ty: relax.Type, node: int) -> Leaves:
        if isinstance(ty, relax.TupleType):
            return [self._new_leaves(part, node) for part in ty.fields]
        if not is_planned(ty):
            return None
        seconds = self.machine.conversion_seconds(tensor_bytes(ty))
        self.tensors.append(PlannedTensor(node, set(), seconds))
        return len(self.tensors) - 1

    def _regrouped(self, value: relax.Expr) -> Leaves:
        """The tensors of a value that makes none; those of a parameter are channels first."""
        if isinstance(value, relax.Var):
            if value not in self.graph.leaves:
                self._produce(value, FIRST_NODE)
            return self.graph.leaves[value]
        if isinstance(value, relax.Tuple):
            return [self._regrouped(part) for part in value.fields]
        if isinstance(value, relax.TupleGetItem):
            whole = self._regrouped(value.tuple_value)
            return whole[value.index] if isinstance(whole, list) else None
        return None

    def _consume(self, value: relax.Expr, node: int) -> None:
        for part in _operands(value):
            for number in flat(self._regrouped(part)):
                self.tensors[number].consumers.add(node)


def _is_regrouped(binding: relax.Binding) -> bool:
    """Whether ConvertLayout keeps the layouts of the tensors in the bound value as they are."""
    value = binding.value
    if isinstance(binding, relax.MatchCast):
        return isinstance(value, relax.Var)
    return isinstance(value, relax.Tuple | relax.TupleGetItem)


def _operands(value: relax.Expr) -> Iterable[relax.Expr]:
    """What ``value`` itself reads; the branches of an If are read for themselves."""
    if isinstance(value, relax.Call):
        return value.args
    return [value.cond] if isinstance(value, relax.If) else [value]
