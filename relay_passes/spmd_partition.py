"""SpmdPartition: the program of one of several devices, which hold slices of weights and values."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.configs.sharding_record import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_KINDS,
    CollectiveRecord,
    ShardingRecord,
)
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.targets import current_description
from tvm_ext.relay_passes.expressions import is_symbolic, read_only, static_shape, tensor_bytes
from tvm_ext.relay_passes.graph_pass import graph_pass, record_applied
from tvm_ext.relay_passes.sharding.collective_cost import CollectiveCost, collective
from tvm_ext.relay_passes.sharding.propagation import ShardingPlan, ShardingPropagation
from tvm_ext.relay_passes.sharding.sharding import (
    REPLICATED,
    Sharding,
    are_equal,
    in_blocks,
    local_shape,
    shape_of,
    slices_of,
    split,
)
from tvm_ext.relay_passes.sharding.strategy import (
    AUTOMATIC,
    DATA,
    NONE,
    PATTERNS,
    TENSOR,
    Seeds,
    batch_of,
    data_seeds,
    modelled_seconds,
    with_batch,
)
from tvm_ext.relay_passes.spans import describe_origin, origins_of, retyped_var, with_functions

NAME = "SpmdPartition"

SHARDING_ATTRIBUTE = "tvm_ext.sharding"
"""Of ``main``: its ``ShardingRecord``, as text."""

REDUCE_SCATTER_FUNCTION = "runtime.disco.reduce_scatter"
"""What a program calls for a reduce-scatter, which TVM's Disco has no function for."""


def sharding_of(mod: tvm.IRModule) -> ShardingRecord | None:
    """What the pass left at a module; None where it did nothing."""
    main = next((func for var, func in mod.functions.items() if var.name_hint == "main"), None)
    attrs = None if main is None else main.attrs
    if attrs is None or SHARDING_ATTRIBUTE not in attrs:
        return None
    found = json.loads(str(attrs[SHARDING_ATTRIBUTE]))
    found["collectives"] = [CollectiveRecord(**one) for one in found["collectives"]]
    return ShardingRecord(**found)


@graph_pass
class SpmdPartition:
    """Makes the program of device ``rank`` of ``devices``, which exchange values where needed.

    Before: ``h = relu(matmul(x, W1))``; ``y = matmul(h, W2)``
    After:  ``h = relu(matmul(x, W1[:, own]))``; ``y = allreduce(matmul(h, W2[own]), "sum")``

    ``shard`` says where splits begin: "data" splits the batch of the inputs, "tensor" the weights
    of matmuls and convolutions by columns or channels, and "auto" takes what takes less modelled
    time. ``patterns`` names inputs, or nodes with weights, and the axis to split instead. Splits
    are followed through the operators. Where one needs values in another way, they are reduced,
    gathered or scattered; of partial sums that are added, the sum is reduced once. All devices have
    the same collectives in the same order. ``tvm_ext.compile(devices=...)`` sets the options; with
    one device the pass does nothing.

    Leaves alone: axes that the devices do not divide, and sizes that a run decides; operators
    without a rule, which every device computes from whole values. A batch that a run decides needs
    no other program.

    Run after: ConvBnReluFold, DecomposeOpsForInference, FoldConstantCalls. Run before:
    AttentionFusion, GemmFusion, LayoutPlanning, LegalizeOps.
    """

    devices: int = 1
    rank: int = 0
    shard: str = AUTOMATIC
    patterns: tuple[tuple[str, int], ...] = ()

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The program of the device; ``mod`` itself with one device."""
        if self.devices == 1 or sharding_of(mod) is not None:
            return mod
        return _Request(mod, self).partitioned()


class _Request:
    """Decides how a module is split."""

    def __init__(self, mod: tvm.IRModule, options: Any) -> None:
        self._mod, self._main, self._options = mod, mod["main"], options
        self._devices = options.devices
        self._cost = CollectiveCost(self._devices, current_description())

    def partitioned(self) -> tvm.IRModule:
        """The module of the device, which says what was done."""
        batch = batch_of(self._main.params)
        if self._options.shard == DATA and not self._options.patterns and is_symbolic(batch):
            return self._with_open_batch(batch)
        strategy, seeds, plan = self._chosen()
        problem = self._problem(strategy, seeds, plan)
        if problem:
            results: list[int | None] = [None] * len(plan.results_of(self._main))
            inputs: list[int | None] = [None] * len(self._main.params)
            record = ShardingRecord(self._devices, strategy, inputs, results, problem=problem)
            return with_sharding(self._mod, record)
        return _Partitioner(self._mod, plan, self._cost, self._options.rank).module(strategy)

    def _with_open_batch(self, batch: Any) -> tvm.IRModule:
        """The program as it is, which a device runs on its part of the batch."""
        places = with_batch(self._main.params, batch)
        inputs = [0 if n in places else None for n in range(len(self._main.params))]
        results = getattr(self._main.ret_ty, "fields", [self._main.ret_ty])
        outputs: list[int | None] = [0] * len(results)
        record = ShardingRecord(self._devices, DATA, inputs, outputs, open_batch=str(batch.name))
        return with_sharding(self._mod, record)

    def _chosen(self) -> tuple[str, Seeds, ShardingPlan]:
        params, devices = self._main.params, self._devices
        if self._options.patterns:
            seeds = Seeds(devices, patterns=self._options.patterns)
            seeds.split_named_inputs(params)
            return PATTERNS, seeds, self._plan(seeds)
        offered = {
            DATA: data_seeds(params, devices),
            TENSOR: Seeds(devices, is_all=True),
        }
        if self._options.shard in offered:
            seeds = offered[self._options.shard]
            return self._options.shard, seeds, self._plan(seeds)
        offered[NONE] = Seeds(devices)
        if not offered[DATA].inputs:
            del offered[DATA]
        plans = {name: self._plan(seeds) for name, seeds in offered.items()}
        machine = self._cost.machine
        best = min(plans, key=lambda name: modelled_seconds(plans[name], machine))
        return best, offered[best], plans[best]

    def _plan(self, seeds: Seeds) -> ShardingPlan:
        walk = ShardingPropagation(self._devices, self._cost, seeds.inputs, seeds.weight_axis)
        return walk.plan(self._main)

    def _problem(self, strategy: str, seeds: Seeds, plan: ShardingPlan) -> str:
        """What stands in the way of what was asked for."""
        if seeds.problems and strategy != NONE:
            return seeds.problems[0]
        unused = [pattern for pattern, _ in seeds.patterns if pattern not in seeds.used]
        if unused:
            return f"no input, and no node with constant weights, is called '{unused[0]}'"
        if strategy != NONE and not plan.split_operators:
            return f"no axis can be split in {self._devices} equal parts"
        return ""


def partition_by_inputs(
    mod: tvm.IRModule,
    function: relax.Function,
    places: Sequence[int],
    devices: int,
    machine: MachineDescription,
) -> tuple[relax.Function, list[CollectiveRecord]] | None:
    """The function of any device, which has a part of the rows of the parameters at ``places``,
    and what it exchanges with the others; ``mod`` has what the function calls.

    None where devices have functions of their own, with another part of a constant or a weight.
    """
    cost, inputs = CollectiveCost(devices, machine), dict.fromkeys(places, split(0))
    plan = ShardingPropagation(devices, cost, inputs, lambda *_: None).plan(function)
    main = function.with_attr("global_symbol", "main")
    partitioner = _Partitioner(with_functions(mod, {tvm.ir.GlobalVar("main"): main}), plan, cost, 0)
    made = partitioner.module(DATA)["main"].without_attr(SHARDING_ATTRIBUTE)
    return (made, partitioner.collectives) if partitioner.alike else None


def with_sharding(mod: tvm.IRModule, record: ShardingRecord) -> tvm.IRModule:
    """A module of one of several devices, which the pass leaves as it is."""
    main = mod["main"].with_attr(SHARDING_ATTRIBUTE, json.dumps(asdict(record)))
    return with_functions(mod, {mod.get_global_var("main"): main})


@mutator
class _Partitioner(PyExprMutator):
    """Writes ``main`` for one device."""

    def __init__(
        self, mod: tvm.IRModule, plan: ShardingPlan, cost: CollectiveCost, rank: int
    ) -> None:
        super().__init__(mod)
        self._mod, self._plan, self._cost, self._rank = mod, plan, cost, rank
        self._devices = plan.devices
        self.collectives: list[CollectiveRecord] = []
        # By hash of a variable of the old program and how it is split: the variable that is that.
        self._versions: dict[tuple[int, Sharding], relax.Var] = {}
        # Those of them that only the present block has.
        self._own_of_block: list[tuple[int, Sharding]] = []
        self._constants: dict[tuple[int, Sharding], relax.Expr] = {}
        # Whether it is the program of every other device too.
        self.alike = True

    def module(self, strategy: str) -> tvm.IRModule:
        """The module, in which ``main`` says what was done."""
        main = self._mod["main"]
        params = [self._param(param) for param in main.params]
        body = self.visit_expr(main.body)
        record = ShardingRecord(
            self._devices,
            strategy,
            [self._plan.of(param).axis for param in main.params],
            [one.axis for one in self._plan.results_of(main)],
            self.collectives,
            self._plan.split_operators,
            len(self._plan.operations),
            self.alike,
        )
        attrs = dict(main.attrs.items()) if main.attrs else {}
        attrs[SHARDING_ATTRIBUTE] = json.dumps(asdict(record))
        made = relax.Function(params, body, body.ty, main.is_pure).with_attrs(attrs)
        self.builder_.update_func(self._mod.get_global_var("main"), made)
        return relax.transform.DeadCodeElimination()(
            relax.transform.Normalize()(self.builder_.get())
        )

    def _param(self, param: relax.Var) -> relax.Var:
        sharding = self._plan.of(param)
        own = param
        if sharding != REPLICATED:
            shape = local_shape(shape_of(param) or [], sharding, self._devices)
            own = retyped_var(param, relax.TensorType(shape, param.ty.dtype), origins_of(param))
        self._versions[hash(param), sharding] = own
        self.set_var_remap(param, own)
        return own

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        new_block = super().visit_dataflow_block_(block)
        for key in self._own_of_block:
            self._versions.pop(key, None)
        self._own_of_block = []
        return new_block

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var, value = binding.var, binding.value
        placement = self._plan.placements.get(hash(var))
        if placement is not None:
            operation = self._plan.operations[hash(var)]
            pairs = zip(operation.operands, placement.operands, strict=True)
            given = [self._version(operand, needed, var) for operand, needed in pairs]
            local = operation.local(given, placement)
            self._bind(var, local, placement.results)
        elif isinstance(value, relax.Var):
            sharding = self._plan.of(value)
            self._bind(var, self._version(value, sharding, var), (sharding,))
        elif isinstance(value, relax.Tuple):
            shardings = self._plan.values[hash(var)]
            pairs = zip(value.fields[:], shardings, strict=True)
            own = [self._version(field, sharding, var) for field, sharding in pairs]
            self._bind(var, relax.Tuple(own), shardings)
        elif isinstance(value, relax.TupleGetItem) and hash(value.tuple_value) in self._plan.values:
            item = relax.TupleGetItem(self.visit_expr(value.tuple_value), int(value.index))
            self._bind(var, item, self._plan.values[hash(var)])
        else:
            self._make_whole(binding)
            super().visit_var_binding_(binding)
            self._versions[hash(var), REPLICATED] = self.visit_expr(var)

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        self._make_whole(binding)
        super().visit_match_cast_(binding)
        self._versions[hash(binding.var), REPLICATED] = self.visit_expr(binding.var)

    def _make_whole(self, binding: relax.Binding) -> None:
        """What a value that is not split reads is that of the whole program."""
        for one in relax.analysis.free_vars(binding.value):
            if isinstance(one.ty, relax.TensorType):
                self.set_var_remap(one, self._version(one, REPLICATED, binding.var))

    def _bind(self, var: relax.Var, value: relax.Expr, shardings: tuple[Sharding, ...]) -> None:
        """The variable, as one device has it; what leaves a block is no part of a reduction."""
        final = self._plan.values[hash(var)]
        value = self.builder_.normalize(value)
        if final != shardings:
            inner = self._emit(value, var)
            value = self.builder_.normalize(
                self._exchanged(inner, shardings[0], final[0], var, var)
            )
        new_var = retyped_var(var, value.ty, origins_of(var))
        self.builder_.emit_normalized(relax.VarBinding(new_var, value))
        self.set_var_remap(var, new_var)
        self._versions[hash(var), final[0]] = new_var

    def _emit(self, value: relax.Expr, like: relax.Var) -> relax.Var:
        value = self.builder_.normalize(value)
        kind = relax.DataflowVar if self.builder_.current_block_is_dataflow() else relax.Var
        made = kind(f"{like.name}_shard", value.ty, like.span)
        self.builder_.emit_normalized(relax.VarBinding(made, value))
        return made

    def _version(self, expr: relax.Expr, needed: Sharding, user: relax.Var) -> relax.Expr:
        """A value of the old program as the device needs it."""
        if isinstance(expr, GenericConst):
            return self._constant(expr, needed)
        if not isinstance(expr, relax.Var):
            return expr
        key = hash(expr), needed
        if key not in self._versions:
            have = self._plan.of(expr)
            source = self._versions.get((hash(expr), have))
            if source is None or have == needed:
                return self.visit_expr(expr)
            made = self._emit(self._exchanged(source, have, needed, expr, user), expr)
            self._versions[key] = made
            if isinstance(made, relax.DataflowVar):
                self._own_of_block.append(key)
        return self._versions[key]

    def _constant(self, constant: GenericConst, needed: Sharding) -> relax.Expr:
        if needed.axis is None:
            return constant
        key = hash(constant), needed
        if key not in self._constants:
            array = read_only(constant.value)
            parts = slices_of(array, needed, self._devices)
            # One that differs says it for all.
            self.alike = self.alike and are_equal(parts)
            dtype = str(constant.ty.dtype)
            own = tvm.runtime.tensor(np.ascontiguousarray(parts[self._rank]))
            self._constants[key] = relax.const(own, dtype)
        return self._constants[key]

    def _exchanged(
        self,
        source: relax.Var,
        have: Sharding,
        needed: Sharding,
        what: relax.Var,
        user: relax.Var,
    ) -> relax.Expr:
        """The collective, or the slice, that gives what is needed."""
        kind = collective(have, needed)
        if not kind:
            if self._plan.has_equal_slices(what, needed):
                return self._slice(source, needed, 0)
            return self._own_slice(source, needed)
        self._note(kind, what, user)
        if kind == ALL_GATHER:
            whole = self._all_gather(source, have, what)
            if needed == REPLICATED:
                return whole
            return self._own_slice(self._emit(whole, what), needed)
        if kind == ALL_REDUCE:
            return relax.op.ccl.allreduce(source, have.reduction)
        return self._reduce_scatter(source, have, needed, what)

    def _note(self, kind: str, what: relax.Var, user: relax.Var) -> None:
        nbytes = tensor_bytes(what.ty)
        seconds = self._cost.collective_seconds(kind, nbytes)
        where = describe_origin(what)
        self.collectives.append(
            CollectiveRecord(
                kind,
                where,
                nbytes,
                self._cost.moved(kind, nbytes),
                seconds,
                static_shape(what) is not None,
            )
        )
        what_for = f"{kind} of {nbytes:,.0f} bytes, {1e6 * seconds:.0f} us modelled"
        record_applied(NAME, where, f"{what_for}, for {describe_origin(user)}")

    def _own_slice(self, source: relax.Expr, needed: Sharding) -> relax.Expr:
        self.alike = False
        return self._slice(source, needed, self._rank)

    def _slice(self, source: relax.Expr, needed: Sharding, rank: int) -> relax.Expr:
        shape, axis = shape_of(source) or [], needed.axis or 0
        if needed.blocks > 1:
            apart = self._emit(relax.op.reshape(source, in_blocks(shape, needed)), source)
            own = self._emit(self._slice(apart, split(axis + 1), rank), source)
            return relax.op.reshape(own, local_shape(shape, needed, self._devices))
        size = int(shape[axis]) // self._devices
        return relax.op.strided_slice(source, [axis], [rank * size], [(rank + 1) * size])

    def _all_gather(self, source: relax.Var, have: Sharding, what: relax.Var) -> relax.Expr:
        """Slices in the order of the devices, next to each other along the axis."""
        gathered = relax.op.ccl.allgather(source, self._devices)
        axis = have.axis or 0
        own, whole = shape_of(source) or [], shape_of(what) or []
        if have.blocks > 1:
            axis, own = axis + 1, in_blocks(own, have)
        if axis == 0:
            return gathered
        apart = relax.op.reshape(self._emit(gathered, what), [self._devices, *own])
        order = [*range(1, axis + 1), 0, *range(axis + 1, len(own) + 1)]
        moved = relax.op.permute_dims(self._emit(apart, what), order)
        return relax.op.reshape(self._emit(moved, what), whole)

    def _reduce_scatter(
        self, source: relax.Var, have: Sharding, needed: Sharding, what: relax.Var
    ) -> relax.Expr:
        axis, whole = needed.axis or 0, shape_of(what) or []
        own = local_shape(whole, needed, self._devices)
        if axis:
            # The slices of each device come one after the other.
            parted = [*whole[:axis], self._devices, own[axis], *whole[axis + 1 :]]
            apart = self._emit(relax.op.reshape(source, parted), what)
            order = [axis, *range(axis), *range(axis + 1, len(parted))]
            source = self._emit(relax.op.permute_dims(apart, order), what)
        return relax.op.call_dps_packed(
            REDUCE_SCATTER_FUNCTION,
            [source, relax.ShapeExpr([REDUCE_KINDS[have.reduction]])],
            out_ty=relax.TensorType(own, what.ty.dtype),
        )
