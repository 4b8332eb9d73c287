"""``compile_training`` and the ``Trainer`` that it returns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from tvm import relax

import tvm_ext
from tvm_ext.api import TargetSource, compile
from tvm_ext.compiled_model import CompiledModel
from tvm_ext.configs.atomic_file import replacing
from tvm_ext.distributed.compile_sharded import ShardingRequest
from tvm_ext.distributed.sharded_model import ShardedModel
from tvm_ext.errors import InputError, MemoryLimitError
from tvm_ext.hardware.targets import program_target
from tvm_ext.kept_tensors import KeptTensors
from tvm_ext.model_inputs import check_inputs
from tvm_ext.onnx_frontend.trainable import (
    TrainableModel,
    TrainableSource,
    import_trainable,
    with_weights,
    write_model,
)
from tvm_ext.relay_passes.sharding.collective_cost import CollectiveCost
from tvm_ext.tensor_spec import TensorSpec
from tvm_ext.training.checkpoint import read_checkpoint, write_checkpoint
from tvm_ext.training.kept_on_devices import KeptOnDevices
from tvm_ext.training.losses import Loss, loss_of
from tvm_ext.training.optimizers import Optimizer, require_optimizer
from tvm_ext.training.progress import progress_bar
from tvm_ext.training.step_program import (
    StepOptions,
    StepProgram,
    batch_of,
    step_programs,
)

# Each is written out: more of them make programs that take long to compile.
_MOST_PARTS = 16

Batch: TypeAlias = Mapping[str, Any]
"""An array for each input of the model and each target, by name."""


@tvm_ext.without_garbage_collection()
def compile_training(
    model: TrainableSource,
    loss: "str | Loss | relax.Function",
    optimizer: Optimizer,
    *,
    train: Sequence[str] | None = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    target: TargetSource = "cpu",
    opt_level: int | str = "O3",
    disabled_passes: Iterable[str] = (),
    threads: int | None = None,
    memory_limit: int | str | None = None,
    devices: int = 1,
) -> "Trainer":
    """Compiles one step of training: loss, gradients and new weights, from a batch.

    Parameters
    ----------
    model : str, Path or onnx.ModelProto
        The ONNX model, or the path of its file. All of its sizes have to be known.
    loss : str, loss or relax.Function
        "cross_entropy", of logits with the classes along axis 1 and a target of labels; "mse";
        ``CrossEntropy(axis=...)``; or a Relax function from the model's outputs and targets to a
        number, whose parameters behind the outputs are the targets. The target of the named losses
        is called "target" in a batch.
    optimizer : SGD, Adam or AdamW
        How weights follow their gradients; its learning rate may be a function of the step.
    train : sequence of str, optional
        Patterns of names of the weights to train, such as "head.*". The others stay as they are.
        Without it all weights are trained.
    input_shapes : mapping of input name to sizes, optional
        The sizes of inputs, for a model that leaves some open.
    clip_norm : float, optional
        The largest norm of all gradients together; larger ones are scaled down.
    accumulate : int
        How many batches are added up for an update. A batch of ``step`` then has that many times
        as many rows.
    target, opt_level, disabled_passes, threads
        As for ``compile``.
    memory_limit : int or str, optional
        As for ``compile``: what the values of a step may take, without the weights and the state
        of the optimiser. Values of the way forward that do not fit are computed again on the way
        back. Where that is not enough, the batch is taken in equal parts, one behind the other,
        if their gradients add up to those of the batch.
    devices : int
        For a CPU: the number of processes that make a step together, each on its part of the
        batch. A batch of ``step`` then has that many times as many rows.

    Returns
    -------
    Trainer

    Raises
    ------
    TvmExtError
        As for ``compile``; UnsupportedOperatorError also for an operator without a gradient.
    """
    require_optimizer(optimizer)
    _require_numbers(clip_norm, accumulate)
    cost = _collectives(devices, target)
    trainable = import_trainable(model, train, input_shapes)
    options = StepOptions(clip_norm, accumulate, cost, program_target(target))
    build = partial(
        compile,
        target=target,
        opt_level=opt_level,
        threads=threads,
        memory_limit=memory_limit,
        devices=devices,
    )
    disabled = tuple(disabled_passes)
    refusals: list[MemoryLimitError] = []
    counts = _counts_of_parts(batch_of(trainable))
    while counts:
        own = replace(options, micro_batches=counts[0])
        programs = step_programs(trainable, loss_of(loss), optimizer, own)
        if not programs:
            break
        left_out = [*disabled, *_left_out(trainable, counts[0])]
        try:
            # The last one, which updates, needs most, and so is refused first.
            compiled = [build(one.mod, disabled_passes=left_out) for one in programs[::-1]][::-1]
        except MemoryLimitError as error:
            counts = _more_parts(counts, error, refusals)
            # A traceback would keep alive all that this function has.
            refusals.append(error.with_traceback(None))
            continue
        return Trainer(model, trainable, optimizer, programs, compiled, own)
    raise min(refusals, key=lambda one: one.needed)


def _counts_of_parts(batch: int) -> list[int]:
    """The numbers of equal parts of a batch that may be tried, the fewest first."""
    found = [1]
    for count in range(2, min(batch, _MOST_PARTS) + 1):
        if batch % count == 0 and count >= 2 * found[-1]:
            found.append(count)
    return found


def _more_parts(
    counts: list[int], error: MemoryLimitError, before: Sequence[MemoryLimitError]
) -> list[int]:
    """The numbers of parts behind the first, which was refused, that may meet the limit.

    There is none where more parts than the time before needed no less.
    """
    if before and error.needed >= before[-1].needed:
        return []
    return [one for one in counts[1:] if error.bound * counts[0] <= error.limit * one]


def _left_out(model: TrainableModel, micro_batches: int) -> tuple[str, ...]:
    """Passes that do no good to a step.

    The chain of states of a recurrent layer has a producer for two or more readers in each step:
    to compute it again in each reader, and that in the next, takes minutes to find out about. And
    kernels of two micro-batches are not to be one, for whose sake both are kept.
    """
    return ("MultiOutputFusion",) if model.is_recurrent or micro_batches > 1 else ()


def _require_numbers(clip_norm: float | None, accumulate: int) -> None:
    if clip_norm is not None and not clip_norm > 0:
        raise InputError(
            f"clip_norm is {clip_norm!r}; expected a number above 0: give one, or leave it out"
        )
    if not isinstance(accumulate, int) or accumulate < 1:
        raise InputError(f"accumulate is {accumulate!r}; expected 1 or more: give a larger one")


def _collectives(devices: int, target: TargetSource) -> CollectiveCost | None:
    """What devices exchange values with; None for one."""
    request, machine = ShardingRequest(devices), program_target(target)
    if devices == 1:
        return None
    request.check(machine)
    return CollectiveCost(devices, machine)


class Trainer:
    """A model in training; ``compile_training`` makes it.

    A trainer is for one thread at a time.

    Attributes
    ----------
    program : CompiledModel
        The program of a step, whose report says how it was compiled.
    steps : int
        How many steps were made.
    micro_batches : int
        In how many parts, one behind the other, a step takes its batch, to meet a memory limit.
    """

    def __init__(
        self,
        source: TrainableSource,
        model: TrainableModel,
        optimizer: Optimizer,
        programs: Sequence[StepProgram],
        compiled: Sequence[CompiledModel],
        options: StepOptions,
    ) -> None:
        self.steps = 0
        self.micro_batches = options.micro_batches
        self.program = compiled[-1]
        self._source, self._model, self._optimizer = source, model, optimizer
        self._accumulate = options.batches
        self._programs, self._compiled = list(programs), list(compiled)
        last = programs[-1]
        stored = {last.weights[name]: array for name, array in model.weights.items()}
        stored |= {last.statistics[name]: array for name, array in model.statistics.items()}
        specs = {spec.name: spec for spec in self.program.inputs}
        first = {
            name: stored[name].copy() if name in stored else _zeros(specs[name])
            for name in last.kept
        }
        # What a pass takes from the one before, by parameter.
        self._state: KeptTensors | KeptOnDevices
        sharded = [one for one in compiled[::-1] if isinstance(one, ShardedModel)]
        if sharded:
            changed = [one.changed for one in programs[::-1]]
            self._state = KeptOnDevices(sharded, first, changed)
        else:
            self._state = KeptTensors(first)

    @property
    def trained(self) -> tuple[str, ...]:
        """The names of the weights that are trained, as in the ONNX file."""
        return tuple(self._model.weights)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What a batch holds for one pass: the inputs of the model, and the targets."""
        return self.program.inputs[: len(self._programs[-1].given)]

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """Copies of the trained weights and of running statistics, by name in the ONNX file."""
        names = {**self._programs[-1].weights, **self._programs[-1].statistics}
        return {name: self._state.arrays[param].copy() for name, param in names.items()}

    def step(self, batch: Batch) -> float:
        """Computes the loss of a batch and its gradients, and updates the weights.

        Parameters
        ----------
        batch : mapping of name to array
            An array for each input of the model and each target of the loss.

        Returns
        -------
        float
            The loss ahead of the update; the mean over the batches that are added up.

        Raises
        ------
        InputError
            An array is missing or does not fit. The weights are then as they were.
        RunError
            The program failed while it ran. Some of the weights may then be new ones: resume.
        """
        parts = self._parts_of(batch)
        numbers = self._optimizer.numbers(self.steps)
        drawn = self.steps * len(parts)
        for place, part in enumerate(parts):
            updates = place + 1 == len(parts)
            cleared = () if place else self._programs[-1].sums
            loss = self._run(part, numbers, drawn + place, cleared, updates)
        self.steps += 1
        return loss

    def fit(
        self,
        batches: Iterable[Batch],
        *,
        progress: bool = True,
        each: Callable[[int, float], None] | None = None,
    ) -> list[float]:
        """Makes a step for each batch.

        Parameters
        ----------
        batches : iterable of batches
            As ``step`` takes them.
        progress : bool
            Whether a terminal shows a bar with the loss on stderr.
        each : function of step and loss, optional
            Called behind each step, with the number of steps so far and the loss.

        Returns
        -------
        list[float]
            The losses.
        """
        losses = []
        with progress_bar(batches, progress) as show:
            for batch in batches:
                losses.append(self.step(batch))
                show(losses[-1])
                if each is not None:
                    each(self.steps, losses[-1])
        return losses

    def save_onnx(self, path: str | Path) -> None:
        """Writes the ONNX model with the weights of now.

        Raises
        ------
        OutputPathError
            The file cannot be written.
        """
        data = write_model(with_weights(self._source, self.weights))
        with replacing(path) as file:
            file.write(data)

    def save(self, path: str | Path) -> None:
        """Writes a checkpoint, from which ``resume`` goes on with the same numbers bit for bit.

        Raises
        ------
        OutputPathError
            The file cannot be written; an older file is then as it was.
        """
        write_checkpoint(path, self._kept_by_steps(), self.steps)

    def resume(self, path: str | Path) -> None:
        """Goes on from a checkpoint of the same model, optimiser and ``train``.

        Raises
        ------
        InputError
            The file is no checkpoint, or one of something else.
        """
        wanted = {name: (one.shape, one.dtype) for name, one in self._kept_by_steps().items()}
        arrays, self.steps = read_checkpoint(path, wanted)
        self._state.replace(arrays)

    def _kept_by_steps(self) -> dict[str, np.ndarray]:
        """What a step takes from the one before: all but the sums within one."""
        sums = self._programs[-1].sums
        return {name: one for name, one in self._state.arrays.items() if name not in sums}

    def _parts_of(self, batch: Batch) -> list[list[np.ndarray]]:
        """The arrays of each pass, which are parts of a batch that is added up."""
        count = self._accumulate
        specs = [replace(spec, shape=_repeated(spec.shape, count)) for spec in self.inputs]
        arrays = check_inputs(specs, batch)
        if count == 1:
            return [arrays]
        # Each pass has the whole of what has no rows.
        cut = [np.split(array, count) if array.ndim else [array] * count for array in arrays]
        return [list(part) for part in zip(*cut, strict=True)]

    def _run(
        self,
        arrays: Sequence[np.ndarray],
        numbers: Mapping[str, float],
        drawn: int,
        cleared: Sequence[str],
        updates: bool,
    ) -> float:
        """One pass, which begins new sums or goes on with them; the last updates the weights."""
        place = -1 if updates else 0
        program, compiled = self._programs[place], self._compiled[place]
        names = [spec.name for spec in compiled.inputs]
        inputs: dict[str, Any] = dict(zip(names, arrays, strict=False))
        specs = {spec.name: spec for spec in compiled.inputs}
        for name in program.numbers:
            inputs[name] = np.array(numbers[name], specs[name].dtype)
        if program.draws:
            # One number for each device: their masks differ.
            (count,) = specs[names[-1]].shape
            inputs[names[-1]] = drawn * int(count) + np.arange(int(count), dtype=np.int64)
        if isinstance(self._state, KeptOnDevices):
            (loss,) = self._state.run(inputs, 0 if updates else 1, cleared).values()
            return float(loss)
        self._state.clear(cleared)
        loss, *made = compiled.run_in_place(inputs, self._state.tensors).values()
        self._state.replace(dict(zip(program.changed, made, strict=True)))
        return float(loss)


def _zeros(spec: TensorSpec) -> np.ndarray:
    return np.zeros([int(size) for size in spec.shape], spec.dtype)


def _repeated(shape: Sequence[int | str], count: int) -> tuple[int | str, ...]:
    """The shape of an array with as many times the rows, if it has rows."""
    if count == 1 or not shape:
        return tuple(shape)
    return (int(shape[0]) * count, *shape[1:])
