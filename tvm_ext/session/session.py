"""A session: runs of a model one after the other, with the state between them kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_ext.configs.errors import nearest_hint
from tvm_ext.errors import InputError
from tvm_ext.model_inputs import ContradictingSizesError, describe, numpy_type
from tvm_ext.session.decoder_model import SessionModel, last_places
from tvm_ext.session.state_buffers import StateBuffers
from tvm_ext.session.state_pairs import StatePair, find_state, new_rows, places_of, require_state
from tvm_ext.tensor_spec import TensorSpec, listed

if TYPE_CHECKING:
    from tvm_ext.compiled_model import CompiledModel


@dataclass
class SessionStatistics:
    """What the state cost so far.

    Attributes
    ----------
    runs : int
        Runs of the session.
    bytes_allocated : int
        Bytes of new memory for the state, over all runs.
    bytes_copied : int
        Bytes of the state of earlier runs that runs copied.
    """

    runs: int = 0
    bytes_allocated: int = 0
    bytes_copied: int = 0


class Session:
    """Runs of a model that hand their state on; ``CompiledModel.session`` makes it.

    A session is for one thread at a time. Several sessions of one model do not disturb each other.

    Attributes
    ----------
    state : tuple[StatePair, ...]
        The outputs that are inputs of the next run.
    capacity : int
        How many rows (tokens) the states that grow can hold.
    statistics : SessionStatistics
        Bytes that were allocated and copied for the state.
    """

    def __init__(
        self,
        model: SessionModel,
        capacity: int,
        *,
        batch: int | None = None,
        states: Mapping[str, str] | None = None,
        last_position: Sequence[str] = (),
    ) -> None:
        if capacity < 1:
            raise InputError(f"the capacity is {capacity}; expected 1 or more: give a larger one")
        if batch is not None and batch < 1:
            raise InputError(f"the batch is {batch}; expected 1 or more: give a larger one")
        self.capacity = capacity
        self.state = find_state(model.inputs, model.outputs, states)
        require_state(self.state, model.outputs, model.report.model_name)
        self.statistics = SessionStatistics()
        self._model, self._batch = model, batch
        self._specs = {spec.name: spec for spec in model.inputs}
        names = {pair.input for pair in self.state}
        self._given = tuple(spec for spec in model.inputs if spec.name not in names)
        # Known ahead, since a decoder of thirty layers has sixty states, and runs in milliseconds.
        self._state_names, self._batch_sizes = frozenset(names), self._names_of_batch()
        self._last = _checked_last(model.outputs, self.state, last_position)
        self._program = _session_program(model, self.state, self._last)
        # The sizes whose sum is how many rows a run appends in place.
        self._terms: tuple[int | str, ...] = ()
        for pair in self.state:
            if pair.input in self.in_place:
                self._terms = _new_rows(model, pair) or ()
        self._length = 0
        # The state: buffers for what the program keeps in place, arrays for the rest.
        self._buffers: StateBuffers | None = None
        self._arrays: dict[str, Any] = {}

    @property
    def length(self) -> int:
        """How many rows (tokens) the states that grow hold; 0 where none grows."""
        return self._length

    @property
    def batch(self) -> int | None:
        """The size of the batch; None ahead of the first run, which decides it."""
        return self._batch

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of a run: those of the model that are no state."""
        return self._given

    @property
    def in_place(self) -> tuple[str, ...]:
        """The states whose new rows are written into the memory of the old ones, by input."""
        state = None if self._program is None else self._program.report.state
        return () if state is None else tuple(state.inputs)

    def run(self, inputs: Mapping[str, Any], *, threads: int | None = None) -> dict[str, Any]:
        """Runs the model once on these inputs and the state that the last run left.

        Parameters
        ----------
        inputs : mapping of input name to array
            One array for each of ``self.inputs``.
        threads : int, optional
            As for ``CompiledModel.run``.

        Returns
        -------
        dict[str, np.ndarray]
            The outputs that are no state.

        Raises
        ------
        InputError
            An input does not fit, or the states would hold more rows than the capacity. The state
            is then what it was.
        TvmExtError
            As for ``CompiledModel.run``.
        """
        self._require_no_state(inputs)
        sizes = self._sizes(inputs)
        if not self._has_state():
            self._start(sizes)
        if self._buffers is not None:
            try:
                return self._run_in_place(self._buffers, inputs, threads)
            except ContradictingSizesError:
                # Names of sizes that are wrong: only a program with others takes such inputs.
                self._leave_buffers()
        on_device = True if self._model.report.target.get("kind") == "cuda" else None
        given = {**inputs, **self._arrays}
        running = self._model if self._program is None else self._program
        results = running.run(given, threads=threads, on_device=on_device)
        self._keep(results)
        found = results if on_device is None else {n: _on_host(v) for n, v in results.items()}
        return self._narrowed(found)

    def reset(self) -> None:
        """Forgets the state. The next run starts anew, and may have another batch."""
        self._buffers, self._arrays, self._length, self._batch = None, {}, 0, None

    def roll_back(self, length: int) -> None:
        """Forgets what came after the first ``length`` rows (tokens).

        Raises
        ------
        InputError
            The session holds fewer rows, or a state is replaced in each run, so that its earlier
            values are not known.
        """
        if not 0 <= length <= self._length:
            raise InputError(
                f"the session cannot be rolled back to a length of {length}; expected one from 0 "
                f"to {self._length}, which it holds: give such a length"
            )
        replaced = [pair.input for pair in self.state if pair.kind == "replace"]
        if len(replaced) == len(self.state) or (replaced and length != self._length):
            raise InputError(
                f"the session cannot be rolled back: {listed(replaced)} have only their last "
                "values; expected states that grow: use save() and restore(), or reset()"
            )
        for pair in self.state:
            if pair.input in self._arrays:
                array = _on_host(self._arrays[pair.input])
                self._arrays[pair.input] = _rows(array, pair, length)
        self._length = length

    def branch(self) -> "Session":
        """Returns a second session that starts from the state of this one."""
        states = {pair.output: pair.input for pair in self.state}
        other = Session(
            self._model,
            self.capacity,
            batch=self._batch,
            states=states,
            last_position=self._last,
        )
        if self._has_state():
            other.restore(self._views())
        return other

    def save(self) -> dict[str, np.ndarray]:
        """Returns a copy of the state: an array for each input, empty ahead of the first run."""
        return {name: np.array(array) for name, array in self._views().items()}

    def restore(self, arrays: Mapping[str, Any]) -> None:
        """Continues from a state that ``save`` returned, of any session of the same model.

        Raises
        ------
        InputError
            A name, type or shape does not fit the model, or the state has more rows than the
            capacity. The session's state is then what it was.
        """
        if not arrays:
            return self.reset()
        found = {pair.input: self._checked(pair, arrays) for pair in self.state}
        for name in arrays:
            if name not in found:
                hint = nearest_hint(str(name), found)
                raise InputError(f"the state holds {name!r}, which the model lacks; {hint}")
        lengths = {found[p.input].shape[p.axis] for p in self.state if p.axis is not None}
        if len(lengths) > 1:
            raise InputError(
                f"the states hold {listed([str(n) for n in sorted(lengths)])} rows; expected one "
                "number for all of them: restore what save() returned"
            )
        length = max(lengths, default=0)
        self._require_room(length, 0)
        self._take(found, length)
        return None

    # The state.

    def _has_state(self) -> bool:
        return bool(self._arrays) or self._buffers is not None

    def _views(self) -> dict[str, np.ndarray]:
        """The state as arrays of the host, in the order of the pairs."""
        held = {} if self._buffers is None else self._buffers.rows(self._length)
        every = {**{name: _on_host(array) for name, array in self._arrays.items()}, **held}
        return {pair.input: every[pair.input] for pair in self.state if pair.input in every}

    def _start(self, sizes: Mapping[str, int]) -> None:
        """The state ahead of the first run: zeros, and no rows of what grows."""
        arrays = {}
        for pair in self.state:
            spec = self._specs[pair.input]
            shape = [sizes.get(n, 0) if isinstance(n, str) else n for n in spec.shape]
            arrays[pair.input] = np.zeros(shape, numpy_type(spec.dtype))
        self._take(arrays, 0)

    def _take(self, arrays: dict[str, Any], length: int) -> None:
        """Takes arrays over as the state; what is kept in place is copied to buffers."""
        sizes: dict[str, int] = {}
        for name, array in arrays.items():
            given = zip(self._specs[name].shape, array.shape, strict=True)
            sizes.update({size: n for size, n in given if isinstance(size, str)})
        kept = set(self.in_place)
        self._buffers = None
        if kept:
            pairs = [pair for pair in self.state if pair.input in kept]
            self._buffers = StateBuffers(pairs, self._specs, self.capacity, sizes)
            self._buffers.write(arrays, length)
            self.statistics.bytes_allocated += self._buffers.nbytes
        self._arrays = {name: array for name, array in arrays.items() if name not in kept}
        self._length, self._batch = length, self._batch_of(arrays)

    def _leave_buffers(self) -> None:
        """Goes on with arrays for all states."""
        arrays = {n: np.ascontiguousarray(array) for n, array in self._views().items()}
        self._program = None
        self._take(arrays, self._length)

    # Runs.

    def _run_in_place(
        self, buffers: StateBuffers, inputs: Mapping[str, Any], threads: int | None
    ) -> dict[str, Any]:
        """A run of the program that writes new rows into the buffers."""
        program = self._program
        if program is None or program.report.state is None:
            raise InputError("the session has no program that keeps its state in place")
        new = self._new_rows(inputs)
        self._require_room(self._length, new)
        # How many rows the buffers hold is a size of an input without elements.
        held = np.empty((self._length, 0), "int8")
        given = {**inputs, **self._arrays, program.inputs[-1].name: held}
        results = program.run_in_place(given, buffers.tensors, threads)
        copied = sum(buffers.row_bytes(name) for name in program.report.state.copied)
        self.statistics.bytes_copied += copied * (self._length + new)
        self._keep(results, self._length + new)
        return self._narrowed(results)

    def _narrowed(self, results: dict[str, Any]) -> dict[str, Any]:
        """The results with the last position of what is wanted of that alone."""
        return results | {name: results[name][:, -1:] for name in self._last}

    def _new_rows(self, inputs: Mapping[str, Any]) -> int:
        """How many rows a run of these inputs appends."""
        sizes = self._sizes_of(inputs)
        return sum(n if isinstance(n, int) else sizes.get(n, 0) for n in self._terms)

    def _require_no_state(self, inputs: Mapping[str, Any]) -> None:
        if not isinstance(inputs, Mapping):
            raise InputError(
                f"inputs are a {type(inputs).__name__}, expected a mapping of name to array: pass "
                f"{{name: array}} with {listed([spec.name for spec in self._given])}"
            )
        for name in self._state_names.intersection(inputs):
            raise InputError(
                f"input '{name}' is a state, which the session holds; expected only "
                f"{listed([spec.name for spec in self._given])}: leave it out, or restore() it"
            )

    def _sizes_of(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """The sizes by name that the inputs of a run decide."""
        sizes: dict[str, int] = {}
        for spec in self._given:
            shape = getattr(inputs.get(spec.name), "shape", ())
            for name, size in zip(spec.shape, shape, strict=False):
                if isinstance(name, str):
                    sizes.setdefault(name, size)
        return sizes

    def _sizes(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """The same with that of the batch; raises InputError where it is not the session's."""
        sizes = self._sizes_of(inputs)
        given = [spec for spec in self._given if spec.shape and isinstance(spec.shape[0], str)]
        shapes = [getattr(inputs.get(spec.name), "shape", ()) for spec in given]
        batch = self._batch or next((shape[0] for shape in shapes if shape), 1)
        for name in self._batch_sizes:
            if self._batch is not None and sizes.get(name, self._batch) != self._batch:
                raise InputError(
                    f"the inputs are of batch {sizes[name]}; expected {self._batch}, the "
                    "session's: give such inputs, reset it, or make another session"
                )
            sizes.setdefault(name, batch)
        return sizes

    def _names_of_batch(self) -> tuple[str, ...]:
        """The names of the sizes that are the batch of a state, as a rule one for all."""
        axes = [(pair, self._batch_axis(pair)) for pair in self.state]
        names = [self._specs[pair.input].shape[axis] for pair, axis in axes if axis is not None]
        return tuple(dict.fromkeys(map(str, names)))

    def _batch_axis(self, pair: StatePair) -> int | None:
        """The first axis of a state whose size runs decide, beside that which grows."""
        shape = self._specs[pair.input].shape
        axes = [n for n, size in enumerate(shape) if isinstance(size, str) and n != pair.axis]
        return axes[0] if axes else None

    def _batch_of(self, arrays: Mapping[str, Any]) -> int | None:
        for pair in self.state:
            axis = self._batch_axis(pair)
            if axis is not None:
                return int(arrays[pair.input].shape[axis])
        return self._batch

    def _keep(self, results: dict[str, Any], length: int | None = None) -> None:
        """Takes the state out of the results of a run, if there is room for it."""
        left = [pair for pair in self.state if pair.input in self._arrays]
        found = {pair.input: results.pop(pair.output) for pair in left}
        if length is None:
            growing = [pair for pair in left if pair.axis is not None]
            length = max((found[p.input].shape[p.axis] for p in growing), default=0)
            self._require_room(self._length, length - self._length)
        for pair in left:
            # A decoder with a branch for its first token has nothing for what that one computed.
            if pair.kind == "replace" and 0 in found[pair.input].shape:
                found[pair.input] = self._arrays[pair.input]
        self._count(left, found)
        self._arrays, self._length = found, length

    def _count(self, left: Sequence[StatePair], found: Mapping[str, Any]) -> None:
        self.statistics.runs += 1
        for pair in left:
            array = found[pair.input]
            size = int(np.prod(array.shape)) * numpy_type(self._specs[pair.input].dtype).itemsize
            self.statistics.bytes_allocated += size
            if pair.axis is not None and array.shape[pair.axis]:
                self.statistics.bytes_copied += size // array.shape[pair.axis] * self._length

    def _require_room(self, held: int, new: int) -> None:
        if held + new > self.capacity:
            raise InputError(
                f"the session holds {held} of {self.capacity} rows and gets {new} more; expected "
                "room for them: make a session of a larger capacity, or roll back"
            )

    def _checked(self, pair: StatePair, arrays: Mapping[str, Any]) -> np.ndarray:
        spec = self._specs[pair.input]
        if pair.input not in arrays:
            raise InputError(
                f"the state lacks '{pair.input}'; expected {spec.describe()}: restore what save() "
                "returned"
            )
        array = np.array(arrays[pair.input])
        sizes = zip(spec.shape, array.shape, strict=False)
        fits = len(spec.shape) == array.ndim and all(isinstance(a, str) or a == b for a, b in sizes)
        if not fits or str(array.dtype) != spec.dtype:
            raise InputError(
                f"the state has {describe(array)} for '{pair.input}'; expected {spec.describe()}: "
                "restore what save() returned"
            )
        return array


def _checked_last(
    outputs: Sequence[TensorSpec], state: Sequence[StatePair], names: Sequence[str]
) -> tuple[str, ...]:
    """The outputs of which the last position is wanted; raises InputError for what is none."""
    states = {pair.output for pair in state}
    # The number of dimensions of some is known in a run only.
    known = [
        spec.name
        for spec in outputs
        if spec.name not in states and (len(spec.shape) > 1 or spec.shape == ("...",))
    ]
    for name in names:
        if name not in known:
            raise InputError(
                f"last_position names '{name}'; expected an output of shape (batch, length, ...) "
                f"that is no state ({listed(known) or 'there is none'}): name such a one"
            )
    return tuple(dict.fromkeys(names))


def _session_program(
    model: SessionModel, state: Sequence[StatePair], last: Sequence[str]
) -> "CompiledModel | None":
    """The program that appends to states in place; None where there is no such program.

    There is none for GPUs, models with steps on the host, and models from a file.
    """
    if model.compile_session is None:
        return None
    places = places_of(model.inputs, model.outputs, state)
    narrow = last_places(model.outputs, last)
    program = model.compile_session(places, narrow) if places or narrow else None
    return None if program is None or program.report.state is None else program


def _new_rows(model: SessionModel, pair: StatePair) -> tuple[int | str, ...] | None:
    """The sizes whose sum is how many rows a run appends; None where that is not known."""
    source = next(spec for spec in model.inputs if spec.name == pair.input)
    result = next(spec for spec in model.outputs if spec.name == pair.output)
    return new_rows(source, result, pair.axis)


def _on_host(array: Any) -> np.ndarray:
    found: np.ndarray = array if isinstance(array, np.ndarray) else array.numpy()
    return found


def _rows(array: np.ndarray, pair: StatePair, length: int) -> np.ndarray:
    """The first rows of a state that grows; the whole of another one."""
    if pair.axis is None:
        return array
    return np.ascontiguousarray(array[(*([slice(None)] * pair.axis), slice(length))])
