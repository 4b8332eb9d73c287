"""A decoder of which only the session's program is compiled, until a run needs the other one."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tvm_ext.report.compile_report import CompileReport
from tvm_ext.report.records import TensorRecord
from tvm_ext.session.state_pairs import find_state, places_of
from tvm_ext.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from tvm_ext.compiled_model import CompiledModel
    from tvm_ext.session.session import Session

States: TypeAlias = tuple[tuple[int, int, int], ...]
"""Position of the input and of the output, and the axis that grows, of each state in place."""

LastPositions: TypeAlias = tuple[tuple[int, int], ...]
"""Position and axis of each output that is computed for the last position only."""

POSITIONS_AXIS = 1
"""The axis of positions of logits, which are of shape (batch, length, vocabulary)."""


class SessionModel(Protocol):
    """What a session is made of: ``CompiledModel`` and ``DecoderModel``."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Those of the model."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Those of the model."""

    @property
    def report(self) -> CompileReport:
        """What the compiler did."""

    @property
    def threads(self) -> int:
        """Threads of a run that is given no other number."""

    @property
    def compile_session(self) -> "Callable[[States, LastPositions], CompiledModel] | None":
        """Compiles the program of a session; None where there is no such program."""

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        on_device: bool | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Runs the model once, with all states as inputs and outputs."""

    def session(
        self,
        capacity: int = 2048,
        *,
        batch: int | None = None,
        states: Mapping[str, str] | None = None,
        last_position: Sequence[str] = (),
    ) -> "Session":
        """Makes a session."""


class DecoderModel:
    """What ``tvm_ext.generate`` compiles of a decoder: the program of its sessions.

    That program reads prompts as well as single tokens. The model's own program, which takes all
    states as inputs, is compiled only where a session cannot keep its state in place any more.

    Parameters
    ----------
    program : CompiledModel
        The session's program.
    compile_whole : callable
        Compiles the model's own program.

    Attributes
    ----------
    inputs, outputs : tuple[TensorSpec, ...]
        Those of the model.
    report : CompileReport
        Of the session's program.
    """

    def __init__(
        self, program: "CompiledModel", compile_whole: "Callable[[], CompiledModel]"
    ) -> None:
        state = program.report.state
        if state is None:
            raise TypeError("the program is that of a model; expected one of a session")
        self._program, self._compile_whole = program, compile_whole
        self.inputs = _specs(state.model_inputs)
        self.outputs = _specs(state.model_outputs)
        self.report = program.report

    @property
    def threads(self) -> int:
        """Threads of a run that is given no other number."""
        return self._program.threads

    @cached_property
    def whole(self) -> "CompiledModel":
        """The model with its own program, which is compiled now unless it was before."""
        return self._compile_whole()

    def compile_session(self, states: States, last: LastPositions) -> "CompiledModel":
        """The program that is there, or one for other states."""
        if (states, last) == session_places(self.inputs, self.outputs):
            return self._program
        compiler = self.whole.compile_session
        return self.whole if compiler is None else compiler(states, last)

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        on_device: bool | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Runs the model once as ``CompiledModel.run`` does, with its own program."""
        return self.whole.run(inputs, on_device=on_device, threads=threads)

    def session(
        self,
        capacity: int = 2048,
        *,
        batch: int | None = None,
        states: Mapping[str, str] | None = None,
        last_position: Sequence[str] = (),
    ) -> "Session":
        """Makes a session as ``CompiledModel.session`` does."""
        from tvm_ext.session.session import Session

        return Session(self, capacity, batch=batch, states=states, last_position=last_position)


def session_places(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[States, LastPositions]:
    """The states and the logits of a decoder, found by their names; none where it has no state."""
    pairs = find_state(inputs, outputs)
    logits = logits_of(outputs, {pair.output for pair in pairs}) if pairs else None
    last = () if logits is None else last_places(outputs, [logits.name])
    return places_of(inputs, outputs, pairs), last


def last_places(outputs: Sequence[TensorSpec], names: Collection[str]) -> LastPositions:
    """Where the outputs of these names are, with the axis of positions."""
    return tuple(
        (place, POSITIONS_AXIS) for place, spec in enumerate(outputs) if spec.name in names
    )


def logits_of(outputs: Sequence[TensorSpec], state: Collection[str]) -> TensorSpec | None:
    """The output of shape (batch, length, vocabulary) that is no state; None without one."""
    left = [spec for spec in outputs if spec.name not in state and len(spec.shape) == 3]
    named = [spec for spec in left if spec.name == "logits"]
    found = named or [spec for spec in left if "float" in spec.dtype]
    return found[0] if len(found) == 1 else None


def _specs(records: Sequence[TensorRecord]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(one.name, one.dtype, tuple(one.shape)) for one in records)
