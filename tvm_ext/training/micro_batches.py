"""A step that takes its batch in parts, one behind the other, and adds up their gradients.

Values of the way forward then live for a part of the batch only. T. Huang et al., "GPipe: Efficient
Training of Giant Neural Networks using Pipeline Parallelism", 2019, calls the parts micro-batches.

The forward function of a part is that of one of as many devices which share the batch: what these
would add up is added up over the parts. A model that needs more than that, as the statistics of a
batch normalisation, cannot take its batch in parts, nor one with a weight for each item.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax, te

from tvm_ext.configs.sharding_record import ALL_REDUCE
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.relay_passes.expressions import operator_name, replaced
from tvm_ext.relay_passes.graph_pass import OPAQUE
from tvm_ext.relay_passes.spmd_partition import partition_by_inputs
from tvm_ext.training.differentiate import block_function
from tvm_ext.training.function_gradients import emit_function, own_bindings

_ALL_REDUCE = "relax.ccl.allreduce"


@dataclass(frozen=True)
class MicroBatches:
    """How a batch is taken in parts.

    Attributes
    ----------
    count : int
        How many parts there are.
    ahead : relax.Function
        From the parameters of the whole function, with a part of the batch: what all parts are
        added up of before the first of them, as the number of labels that count.
    forward : relax.Function
        From those parameters and the sums over all parts to the part's summand of the loss.
    split : tuple[bool, ...]
        For each parameter of the whole function whether a part has its own rows of it.
    """

    count: int
    ahead: relax.Function
    forward: relax.Function
    split: tuple[bool, ...]

    @property
    def params(self) -> list[relax.Var]:
        """Those of ``forward`` that stand for the parameters of the whole function."""
        return list(self.forward.params)[: len(self.split)]

    @property
    def sums(self) -> list[relax.Var]:
        """Those of ``forward`` that stand for sums over all parts."""
        return list(self.forward.params)[len(self.split) :]

    def totals(self, bb: relax.BlockBuilder, arguments: Sequence[relax.Var]) -> list[relax.Expr]:
        """The sums over all parts; ``arguments`` are those of the whole function."""
        found: list[relax.Expr] = []
        for place in range(self.count) if self.sums else ():
            made = emit_function(bb, self.ahead, self._rows(bb, arguments, place))
            found = added(bb, found, list(made.fields))
        return found

    def values(
        self,
        bb: relax.BlockBuilder,
        arguments: Sequence[relax.Var],
        totals: Sequence[relax.Expr],
        place: int,
    ) -> dict[relax.Var, relax.Expr]:
        """The values of the parameters of ``forward`` for one of the parts."""
        given = [*self._rows(bb, arguments, place), *totals]
        return dict(zip(self.forward.params, given, strict=True))

    def _rows(
        self, bb: relax.BlockBuilder, arguments: Sequence[relax.Var], place: int
    ) -> list[relax.Expr]:
        found: list[relax.Expr] = []
        for argument, is_split in zip(arguments, self.split, strict=True):
            if is_split:
                rows = int(argument.ty.shape.values[0]) // self.count
                ends = [place * rows], [(place + 1) * rows]
                found.append(bb.emit(relax.op.strided_slice(argument, [0], *ends)))
            else:
                found.append(argument)
        return found


def apart(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Var:
    """The value, as no kernel that computes it sees it.

    The sum with a value of the next part is then no part of the kernel of this one, all that it
    reads would live until the sum is there. The copy becomes a view.
    """
    shape = value.ty.shape.values
    given = te.placeholder(shape, str(value.ty.dtype), "given")
    kernel = te.create_prim_func([given, te.compute(shape, lambda *at: given(*at), "kept")])
    variable = bb.add_func(kernel.with_attr("op_pattern", OPAQUE), "kept")
    return bb.emit(relax.call_tir(variable, [value], value.ty))


def added(
    bb: relax.BlockBuilder, totals: Sequence[relax.Expr], values: Sequence[relax.Expr]
) -> list[relax.Expr]:
    """The sums of values and of totals so far, of which there are none at first."""
    if not totals:
        return list(values)
    pairs = zip(totals, values, strict=True)
    # The sum may be part of the kernel that computes the value behind.
    return [bb.emit(relax.op.add(value, total)) for total, value in pairs]


def micro_batches(
    mod: tvm.IRModule,
    function: relax.Function,
    split: Sequence[relax.Var],
    weights: Collection[relax.Var],
    count: int,
    machine: MachineDescription,
) -> MicroBatches | None:
    """How a loss is computed in parts; None where that would be another loss.

    Parameters
    ----------
    mod : tvm.IRModule
        What the function calls.
    function : relax.Function
        From inputs, targets and weights to a tuple of the loss alone.
    split : sequence of relax.Var
        The parameters with a row for each item of the batch.
    weights : collection of relax.Var
        The parameters that are trained.
    count : int
        How many parts there are.
    machine : MachineDescription
        What runs them.
    """
    if len(function.body.body.fields) != 1:
        return None
    is_split = [param in split for param in function.params]
    places = [place for place, own in enumerate(is_split) if own]
    partition = partition_by_inputs(mod, function, places, count, machine)
    if partition is None:
        return None
    local, collectives = partition
    if any(one.kind != ALL_REDUCE for one in collectives):
        return None
    bindings = own_bindings(local)
    totals = [one for one in bindings if operator_name(one.value) == _ALL_REDUCE]
    (loss,) = local.body.body.fields
    if not totals or not totals[-1].var.same_as(loss):
        return None
    *ahead, last = totals
    if any(one.value.attrs.op_type != "sum" for one in totals):
        return None
    pairs = zip(local.params, function.params, strict=True)
    trained = {own for own, whole in pairs if whole in weights}
    inner = {one.var for one in ahead}
    if any(_is_computed_from(one.value, bindings, trained | inner) for one in ahead):
        return None
    kept = [one for one in bindings if one.var not in inner and not one.var.same_as(last.var)]
    sums = {one.var: relax.Var(f"{one.var.name}_sum", one.var.ty) for one in ahead}
    params, part = list(local.params), last.value.args[0]
    counted = _computed(kept, [one.value.args[0] for one in ahead])
    moved = [_with_values(one, sums) for one in _computed(kept, [part])]
    return MicroBatches(
        count,
        block_function(params, counted, [one.value.args[0] for one in ahead]),
        block_function([*params, *sums.values()], moved, [part]),
        tuple(is_split),
    )


def _with_values(
    binding: relax.Binding, values: Mapping[relax.Var, relax.Expr]
) -> relax.VarBinding:
    return relax.VarBinding(binding.var, replaced(binding.value, values))


def _computed(
    bindings: Sequence[relax.Binding], results: Sequence[relax.Expr]
) -> list[relax.Binding]:
    """Those of the bindings that these results need."""
    needed = {var for one in results for var in relax.analysis.free_vars(one)}
    found = []
    for binding in reversed(bindings):
        if binding.var in needed:
            needed.update(relax.analysis.free_vars(binding.value))
            found.append(binding)
    return found[::-1]


def _is_computed_from(
    value: relax.Expr, bindings: Sequence[relax.Binding], sources: Collection[relax.Var]
) -> bool:
    needed = _computed(bindings, [value])
    read = [value, *(one.value for one in needed)]
    return any(var in sources for one in read for var in relax.analysis.free_vars(one))
