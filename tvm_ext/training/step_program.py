"""The program of one step of training: loss, gradients and new weights, from a batch.

main(inputs, targets, weights, statistics, state of the optimiser, numbers of the step)
    -> (loss, new weights, new statistics, new state)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax

from tvm_ext.errors import InputError
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.onnx_frontend.trainable import TrainableModel
from tvm_ext.passes.donate_params import DONATED
from tvm_ext.relay_passes.expressions import static_extents
from tvm_ext.relay_passes.sharding.collective_cost import CollectiveCost
from tvm_ext.relay_passes.spans import with_functions
from tvm_ext.relay_passes.spmd_partition import with_sharding
from tvm_ext.tensor_spec import TensorSpec
from tvm_ext.training.differentiate import Differentiated, Differentiation
from tvm_ext.training.function_gradients import emit_function, results_of
from tvm_ext.training.gradient_buckets import GradientBuckets
from tvm_ext.training.losses import Loss
from tvm_ext.training.micro_batches import MicroBatches, added, apart, micro_batches
from tvm_ext.training.operators_of_kernels import with_operators
from tvm_ext.training.optimizers import Optimizer

# What follows a weight's name in that of the sum of its gradients.
_SUM = "gradient"


@dataclass(frozen=True)
class StepProgram:
    """A step as a Relax module, and the names of what it takes and gives.

    Attributes
    ----------
    mod : tvm.IRModule
        Its function ``main``.
    given : tuple[TensorSpec, ...]
        What each step is given, under the names of the model's inputs and of the targets: the
        first parameters, in order.
    kept : tuple[str, ...]
        The parameters that stay from step to step.
    changed : tuple[str, ...]
        Those of them whose next values are the results behind the loss.
    sums : tuple[str, ...]
        Those of them that add up gradients and losses, and are zero ahead of a step.
    weights, statistics : dict[str, str]
        Parameters by the name in the ONNX file.
    numbers : tuple[str, ...]
        Parameters that are numbers of the step.
    draws : bool
        Whether the last parameter is the number of the step.
    """

    mod: tvm.IRModule
    given: tuple[TensorSpec, ...]
    kept: tuple[str, ...]
    changed: tuple[str, ...]
    sums: tuple[str, ...]
    weights: dict[str, str]
    statistics: dict[str, str]
    numbers: tuple[str, ...]
    draws: bool


@dataclass(frozen=True)
class StepOptions:
    """What a step does with the gradients.

    Attributes
    ----------
    clip_norm : float or None
        The largest norm of all gradients together.
    batches : int
        How many batches are added up for an update.
    collectives : CollectiveCost or None
        Of the devices that each have a part of the batch.
    machine : MachineDescription or None
        What runs the step; it has to be known for more than one of ``micro_batches``.
    micro_batches : int
        In how many parts, one behind the other, a batch is taken.
    """

    clip_norm: float | None = None
    batches: int = 1
    collectives: CollectiveCost | None = None
    machine: MachineDescription | None = None
    micro_batches: int = 1


@dataclass(frozen=True)
class _Parts:
    """The forward function and its parameters by kind."""

    mod: tvm.IRModule
    function: relax.Function
    inputs: list[relax.Var]
    targets: list[relax.Var]
    weights: list[relax.Var]
    statistics: list[relax.Var]
    step: list[relax.Var]


def require_known_sizes(model: TrainableModel) -> None:
    """Raises InputError where a run would decide a size."""
    for spec in (*model.imported.inputs, *model.imported.outputs):
        if any(not isinstance(size, int) for size in spec.shape):
            raise InputError(
                f"{spec.describe()} of {model.imported.name} has a size that is not known; "
                "expected known sizes for training: give input_shapes, the batch's size among them"
            )


def step_programs(
    model: TrainableModel, loss: Loss, optimizer: Optimizer, options: StepOptions
) -> tuple[StepProgram, ...]:
    """The program of a step; with several batches for an update, the one that adds up comes first.

    There is none where micro-batches are asked for, and their sum would be another loss.

    Raises
    ------
    UnsupportedOperatorError, InputError
        An operator has no gradient, or a size is not known.
    """
    require_known_sizes(model)
    targets = loss.targets(model.imported.outputs[: model.outputs])
    _require_own_names(model, targets)
    cost = options.collectives
    buckets = None if cost is None else GradientBuckets(cost)
    parts = _forward(model, loss, targets, buckets)
    differentiation = Differentiation(parts.mod, model.imported.name)
    micro = _micro_batches(parts, options)
    if micro is not None:
        own = dict(zip(parts.function.params, micro.params, strict=True))
        differentiated = differentiation.of(micro.forward, [own[one] for one in parts.weights])
    elif options.micro_batches == 1:
        differentiated = differentiation.of(parts.function, parts.weights)
    else:
        return ()
    parts = replace(parts, mod=differentiation.module())
    writer = _StepWriter(model, parts, targets, differentiated, optimizer, options, buckets, micro)
    if options.batches == 1:
        return (writer.program(updates=True),)
    return writer.program(updates=False), writer.program(updates=True)


def batch_of(model: TrainableModel) -> int:
    """The first size of the model's first input that has one; 1 where none has.

    Raises
    ------
    InputError
        A size is not known.
    """
    require_known_sizes(model)
    given = model.imported.inputs[: model.inputs]
    return next((int(spec.shape[0]) for spec in given if spec.shape), 1)


def _micro_batches(parts: _Parts, options: StepOptions) -> MicroBatches | None:
    """How a batch is taken in parts; None where it is not, or cannot be.

    Masks that a step draws would be others for each part, and so are left alone.
    """
    machine, count = options.machine, options.micro_batches
    if machine is None or count == 1 or parts.step or options.collectives is not None:
        return None
    given = [*parts.inputs, *parts.targets]
    shapes = [static_extents(param.ty) for param in given]
    rows = [param for param, shape in zip(given, shapes, strict=True) if shape]
    if len({shape[0] for shape in shapes if shape}) != 1:
        return None
    return micro_batches(parts.mod, parts.function, rows, parts.weights, count, machine)


def _require_own_names(model: TrainableModel, targets: Sequence[TensorSpec]) -> None:
    inputs = {spec.name for spec in model.imported.inputs[: model.inputs]}
    for spec in targets:
        if spec.name in inputs:
            raise InputError(
                f"the loss has the target '{spec.name}', which is also an input of "
                f"{model.imported.name}; expected another name: rename one of them"
            )


def _forward(
    model: TrainableModel,
    loss: Loss,
    specs: Sequence[TensorSpec],
    buckets: GradientBuckets | None,
) -> _Parts:
    """The function from everything to the loss and the next statistics, as one dataflow block."""
    targets = [
        relax.Var(spec.name, relax.TensorType(list(spec.shape), spec.dtype)) for spec in specs
    ]
    mod = with_operators(model.imported.mod)
    main = mod["main"]
    called = {var: one for var, one in mod.functions.items() if var.name_hint != "main"}
    bb = relax.BlockBuilder(tvm.IRModule(called))
    params = [relax.Var(str(param.name), param.ty) for param in main.params]
    with bb.function("forward", [*params, *targets]):
        with bb.dataflow():
            results = results_of(bb, emit_function(bb, main, params))
            given = (results[: model.outputs], targets)
            value = loss.value(bb, *given, buckets.mean) if buckets else loss.value(bb, *given)
            returned = [bb.emit_output(one) for one in (value, *results[model.outputs :])]
        bb.emit_func_output(relax.Tuple(returned))
    passes = [
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(["forward"]),
    ]
    mod = tvm.transform.Sequential(passes)(bb.get())
    function = mod["forward"]
    del mod["forward"]
    params, ends = list(function.params), [model.inputs]
    for count in (len(model.weights), len(model.statistics), int(model.draws), len(targets)):
        ends.append(ends[-1] + count)
    kinds = [params[low:high] for low, high in zip([0, *ends], ends, strict=False)]
    inputs, weights, statistics, step, wanted = kinds
    return _Parts(mod, function, inputs, wanted, weights, statistics, step)


class _StepWriter:
    """Writes ``main`` around the differentiated function."""

    def __init__(
        self,
        model: TrainableModel,
        parts: _Parts,
        targets: Sequence[TensorSpec],
        differentiated: Differentiated,
        optimizer: Optimizer,
        options: StepOptions,
        buckets: GradientBuckets | None,
        micro: MicroBatches | None,
    ) -> None:
        self._buckets, self._micro = buckets, micro
        self._model, self._parts = model, parts
        self._differentiated = differentiated
        self._optimizer, self._options = optimizer, options
        every = [*parts.inputs, *parts.targets, *parts.weights, *parts.statistics, *parts.step]
        self._params = {param: relax.Var(str(param.name), param.ty) for param in every}
        specs = [*model.imported.inputs[: model.inputs], *targets]
        self._given = tuple(specs)
        # By the place of a result or gradient, what has the sum of it over the passes of a step.
        self._sums: dict[int, relax.Var] = {}
        if options.batches > 1:
            loss, *others = parts.function.body.body.fields
            self._sums[0] = relax.Var(f"loss__{_SUM}", loss.ty)
            ahead = 1 + len(others)
            sums = (_like(param, _SUM) for param in parts.weights)
            self._sums |= enumerate(sums, ahead)
        self._slots = [
            {slot: _like(param, slot) for slot in optimizer.slots} for param in parts.weights
        ]

    def program(self, updates: bool) -> StepProgram:
        """A step that updates the weights, or one that only adds up gradients."""
        parts, own = self._parts, self._params
        kept = [own[param] for param in (*parts.weights, *parts.statistics)]
        kept += self._sums.values()
        kept += [state for slots in self._slots for state in slots.values()]
        names = list(self._optimizer.numbers(0))
        dtype = _widest(parts.weights)
        numbers = {name: relax.Var(name, relax.TensorType([], dtype)) for name in names}
        given = [own[param] for param in (*parts.inputs, *parts.targets)]
        step = [own[param] for param in parts.step]
        buckets = self._buckets
        bb = relax.BlockBuilder(parts.mod)
        with bb.function("main", [*given, *kept, *numbers.values(), *step]):
            with bb.dataflow():
                values = self._differentiated_in(bb, updates)
                loss, *others = values[: 1 + len(parts.statistics)]
                statistics = (own[param] for param in parts.statistics)
                made = dict(zip(statistics, others, strict=True))
                if updates:
                    loss, *gradients = self._means(bb, [loss, *values[1 + len(others) :]])
                    made |= self._next(bb, gradients, numbers)
                else:
                    made |= {total: values[place] for place, total in self._sums.items()}
                returned = bb.emit_output(relax.Tuple([loss, *made.values()]))
            bb.emit_func_output(returned)
        mod = _simplified(_donating(bb.get(), [one.name for one in made]))
        if buckets is not None:
            split = {str(var.name) for var in (*given, *step) if var.ty.ndim}
            axes = [0 if str(var.name) in split else None for var in mod["main"].params]
            mod = with_sharding(mod, buckets.record(axes, 1 + len(made)))
        return StepProgram(
            mod,
            self._given,
            tuple(str(var.name) for var in kept),
            tuple(str(var.name) for var in made),
            tuple(str(var.name) for var in self._sums.values()),
            _by_name(self._model.weights, parts.weights),
            _by_name(self._model.statistics, parts.statistics),
            tuple(names),
            bool(step),
        )

    def _differentiated_in(self, bb: relax.BlockBuilder, updates: bool) -> list[relax.Expr]:
        """Emits the way forward and back; the results and the gradients, with the sums so far.

        Devices exchange what the pass that updates has.
        """
        own = self._params
        if self._buckets is not None and updates:
            bindings, results, gradients = self._differentiated.body(bb, own)
            return self._buckets.means(bb, bindings, results, gradients, self._sums)
        if self._micro is not None:
            values = self._in_parts(bb, self._micro)
        else:
            results, gradients = self._differentiated.emit(bb, own)
            values = [*results, *gradients]
        for place, total in self._sums.items():
            values[place] = bb.emit(relax.op.add(values[place], total))
        return values

    def _in_parts(self, bb: relax.BlockBuilder, micro: MicroBatches) -> list[relax.Expr]:
        """The same for all parts of the batch, one behind the other."""
        given = [self._params[one] for one in self._parts.function.params]
        sums = micro.totals(bb, given)
        made: list[relax.Expr] = []
        for place in range(micro.count):
            values = micro.values(bb, given, sums, place)
            results, gradients = self._differentiated.emit(bb, values)
            made = [apart(bb, one) for one in made]
            made = added(bb, made, [*results, *gradients])
        return made

    def _means(self, bb: relax.BlockBuilder, sums: Sequence[relax.Expr]) -> list[relax.Expr]:
        """The means over the passes of a step."""
        count = self._options.batches
        return [_scaled(bb, one, 1 / count) for one in sums] if count > 1 else list(sums)

    def _next(
        self,
        bb: relax.BlockBuilder,
        gradients: list[relax.Expr],
        numbers: dict[str, relax.Expr],
    ) -> dict[relax.Var, relax.Expr]:
        """The next values of weights and states of the optimiser."""
        if self._options.clip_norm is not None:
            gradients = _clipped(bb, gradients, self._options.clip_norm)
        weights = [self._params[param] for param in self._parts.weights]
        updates_of = list(zip(weights, gradients, self._slots, strict=True))
        made: list[dict[relax.Var, relax.Expr]] = []
        # The gradients of the last layers are there first.
        for weight, gradient, slots in reversed(updates_of):
            own = {name: _as_type(bb, one, weight.ty.dtype) for name, one in numbers.items()}
            moved, state = self._optimizer.update(bb, weight, gradient, slots, own)
            made.append({weight: moved, **{slots[slot]: one for slot, one in state.items()}})
        # Results are in the order of the weights.
        return {param: value for one in reversed(made) for param, value in one.items()}


def _scaled(bb: relax.BlockBuilder, value: relax.Expr, factor: float) -> relax.Expr:
    return bb.emit(relax.op.multiply(value, relax.const(factor, str(value.ty.dtype))))


def _like(param: relax.Var, slot: str) -> relax.Var:
    # A single underscore may be in the name of another weight, such as one of a mean.
    return relax.Var(f"{param.name}__{slot}", param.ty)


def _clipped(
    bb: relax.BlockBuilder, gradients: Sequence[relax.Expr], limit: float
) -> list[relax.Expr]:
    """The gradients, scaled down together where their norm is above the limit."""
    dtype = _widest(gradients)
    total: relax.Expr = relax.const(0.0, dtype)
    for gradient in gradients:
        own = _as_type(bb, gradient, dtype)
        square = bb.emit(relax.op.sum(bb.emit(relax.op.multiply(own, own))))
        total = bb.emit(relax.op.add(total, square))
    norm = bb.emit(relax.op.sqrt(total))
    # As in PyTorch: gradients of zero are divided by something.
    below = bb.emit(relax.op.add(norm, relax.const(1e-6, dtype)))
    share = bb.emit(relax.op.divide(relax.const(limit, dtype), below))
    factor = bb.emit(relax.op.minimum(share, relax.const(1.0, dtype)))
    return [
        bb.emit(relax.op.multiply(one, _as_type(bb, factor, one.ty.dtype))) for one in gradients
    ]


def _as_type(bb: relax.BlockBuilder, value: relax.Expr, dtype: Any) -> relax.Expr:
    if str(value.ty.dtype) == str(dtype):
        return value
    return bb.emit(relax.op.astype(value, str(dtype)))


def _widest(values: Iterable[relax.Expr]) -> str:
    """The type of the most exact of the values, each of which is float32 or float64."""
    return max(str(value.ty.dtype) for value in values)


def _donating(mod: tvm.IRModule, names: Sequence[str]) -> tvm.IRModule:
    """The module, in which the results behind the loss may have these parameters' memory."""
    places = {str(name): place + 1 for place, name in enumerate(names)}
    return with_functions(mod, {mod.get_global_var("main"): mod["main"].with_attr(DONATED, places)})


def _simplified(mod: tvm.IRModule) -> tvm.IRModule:
    passes = [
        relax.transform.Normalize(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
    return tvm.transform.Sequential(passes)(mod)


def _by_name(names: Iterable[str], params: Sequence[relax.Var]) -> dict[str, str]:
    return dict(zip(names, (str(param.name) for param in params), strict=True))
