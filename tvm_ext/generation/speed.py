"""How fast tokens came, and how much a run read for one, beside what the machine can read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm_ext.model_inputs import numpy_type
from tvm_ext.report.compile_report import CompileReport
from tvm_ext.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from tvm_ext.session import StatePair

# How long the read bandwidth is measured.
_MEASURING_SECONDS = 0.5


@dataclass(frozen=True)
class StateSize:
    """Bytes of a state.

    Attributes
    ----------
    bytes_per_token : int
        Of keys and values for one token of one row.
    """

    bytes_per_token: int

    @classmethod
    def of(cls, inputs: Iterable[TensorSpec], pairs: "Sequence[StatePair]") -> "StateSize":
        """Of the states that grow. A batch and lengths that a run decides count as 1."""
        growing = {pair.input for pair in pairs if pair.axis is not None}
        size = 0
        for spec in inputs:
            if spec.name in growing:
                elements = 1
                for extent in spec.shape:
                    elements *= extent if isinstance(extent, int) else 1
                size += elements * numpy_type(spec.dtype).itemsize
        return cls(size)


@dataclass
class GenerationSpeed:
    """What the texts of one call took.

    Attributes
    ----------
    prompt_tokens, prompt_seconds : int, float
        Tokens of the prompts, and the time of the runs that read them.
    new_tokens, seconds : int, float
        Tokens that runs of one token gave, and the time of these runs, with the choice of tokens.
    runs : int
        Runs of one token.
    weights_bytes : int
        Bytes of weights that such a run reads.
    state_bytes : int
        Bytes of the state that all such runs read.
    """

    weights_bytes: int
    bytes_per_token: int
    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    new_tokens: int = 0
    seconds: float = 0.0
    runs: int = 0
    state_bytes: int = 0

    @classmethod
    def of(cls, report: CompileReport, state: StateSize) -> "GenerationSpeed":
        """Ahead of the first run."""
        memory = report.memory
        read = memory.weights_read_bytes
        return cls(memory.weights_bytes if read is None else read, state.bytes_per_token)

    def add_prompts(self, tokens: int, seconds: float) -> None:
        """Counts a run that read prompts."""
        self.prompt_tokens += tokens
        self.prompt_seconds += seconds

    def add_run(self, tokens: int, seconds: float, held: int) -> None:
        """Counts a run that gave so many tokens, with so many in the state."""
        self.new_tokens += tokens
        self.seconds += seconds
        self.runs += 1
        self.state_bytes += held * self.bytes_per_token

    @property
    def prompt_tokens_per_second(self) -> float | None:
        """None ahead of the first prompt."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds else None

    @property
    def tokens_per_second(self) -> float | None:
        """Without those that the prompt's run gave; None where there are no others."""
        return self.new_tokens / self.seconds if self.seconds else None

    @property
    def bytes_per_run(self) -> float | None:
        """Bytes of weights and state that a run of one token reads, in the mean."""
        return self.weights_bytes + self.state_bytes / self.runs if self.runs else None

    @property
    def read_gbs(self) -> float | None:
        """1e9 bytes of weights and state that were read a second."""
        size = self.bytes_per_run
        return None if size is None or not self.seconds else size * self.runs / self.seconds / 1e9

    def to_dict(self, measured_gbs: float | None = None) -> dict[str, Any]:
        """JSON values; with ``measured_gbs``, what this machine can read a second, beside it."""
        gbs = self.read_gbs
        return {
            "prompt_tokens": self.prompt_tokens,
            "prompt_seconds": self.prompt_seconds,
            "prompt_tokens_per_second": self.prompt_tokens_per_second,
            "new_tokens": self.new_tokens,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "weights_bytes_per_run": self.weights_bytes,
            "bytes_read_per_run": self.bytes_per_run,
            "read_gb_per_second": gbs,
            "measured_gb_per_second": measured_gbs,
            "share_of_measured": gbs / measured_gbs if gbs and measured_gbs else None,
        }


def measured_read_gbs(report: CompileReport, threads: int) -> float | None:
    """1e9 bytes a second that this CPU reads on so many threads, measured in half a second.

    None for a model that is for something else than this CPU.
    """
    # What measures brings TVM's compiler.
    from tvm_ext.hardware.cpu.description import CpuDescription
    from tvm_ext.hardware.cpu.measured_peaks import read_peak
    from tvm_ext.hardware.targets import description_of
    from tvm_ext.hardware.timing import interleaved_seconds, timed

    machine = description_of(report.target, "the report")
    if not isinstance(machine, CpuDescription):
        return None
    peak = read_peak(machine.with_cores(threads))
    (taken,) = interleaved_seconds([timed(peak.run)], _MEASURING_SECONDS, rounds=10)
    return peak.rate(min(taken))
