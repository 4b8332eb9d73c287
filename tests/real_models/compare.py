"""Compiles one exported file, runs it at each size, and compares it with ONNX Runtime."""

import pickle
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from catalogue.entry import ExportedEntry
from difference import Different, largest_difference
from outcome import INTERNAL, MATCH, NO_REFERENCE, REFUSED, WRONG, ModelOutcome

import tvm_ext
from tvm_ext.check.reference import ReferenceSession
from tvm_ext.errors import ReferenceUnavailableError, TvmExtError
from tvm_ext.hardware.timing import interleaved_seconds, timed

THREADS = 2
# Of both programs together. Longer runs than the second are not timed at all.
TIMING_SECONDS, SLOWEST_SECONDS = 1.0, 5.0


@dataclass(frozen=True)
class ExportedFile:
    """One ONNX file of a case."""

    case: ExportedEntry
    model: Path
    opt_level: str = "O3"
    is_timed: bool = True

    @property
    def expected(self) -> Path:
        """Holds the outputs of ONNX Runtime by size, or why it does not run the file."""
        return self.model.with_suffix(".expected")

    @property
    def found(self) -> Path:
        """Holds the outcome."""
        return self.model.with_suffix(".outcome")

    def inputs(self) -> list[dict[str, Any]]:
        """Of each run."""
        return pickle.loads(self.model.with_suffix(".inputs").read_bytes())

    def outcome(self, status: str, reason: str = "") -> ModelOutcome:
        """An outcome of this file."""
        entry, part = self.case.entry, self.model.stem
        name = entry.name if part == "model" else f"{entry.name} {part}"
        sizes = [dict(sizes) for sizes in self.case.sizes]
        # The page goes into the project, which knows no folder of a machine.
        reason = reason.replace(f"{self.model.parent}/", "")
        return ModelOutcome(
            name, entry.family, self.case.exporter, self.case.form, status, reason, sizes
        )


def lost_file(file: ExportedFile, status: str, reason: str) -> ModelOutcome:
    """The outcome of a file that our process did not survive."""
    return _kept(file, file.outcome(status, reason))


def lost_reference(file: ExportedFile, status: str, reason: str) -> None:
    """ONNX Runtime's process did not survive the file."""
    file.expected.write_bytes(pickle.dumps(f"ONNX Runtime: {status}, {reason}"))


def run_reference(file: ExportedFile) -> None:
    """Keeps what ONNX Runtime gives at each size; at a size that it refuses, why."""
    try:
        session = ReferenceSession(file.model, THREADS)
    except ReferenceUnavailableError as error:
        file.expected.write_bytes(pickle.dumps(str(error)))
        return
    wanted: list[Mapping[str, Any] | str] = []
    for inputs in file.inputs():
        try:
            wanted.append(session.run(inputs))
        except ReferenceUnavailableError as error:
            wanted.append(str(error))
    file.expected.write_bytes(pickle.dumps(wanted))


def compare_file(file: ExportedFile) -> ModelOutcome:
    """The outcome of a file whose reference was run; it is kept beside the file too."""
    return _kept(file, _outcome(file))


def _kept(file: ExportedFile, outcome: ModelOutcome) -> ModelOutcome:
    outcome.write(file.found)
    return outcome


def _outcome(file: ExportedFile) -> ModelOutcome:
    expected = pickle.loads(file.expected.read_bytes())
    if isinstance(expected, str):
        return file.outcome(NO_REFERENCE, expected)
    runs = [pair for pair in zip(file.inputs(), expected, strict=True) if _is_known(pair)]
    if not runs:
        return file.outcome(NO_REFERENCE, expected[0])
    try:
        return _compared(file, runs)
    except TvmExtError as error:
        return file.outcome(REFUSED, " ".join(str(error).split())[:2000])
    except Different as error:
        return file.outcome(WRONG, str(error))
    except BaseException as error:  # noqa: BLE001 - what it is about: none may get here
        text = " ".join(str(error).split())[:600]
        return file.outcome(INTERNAL, f"{type(error).__name__}: {text}")


def _is_known(pair: tuple[Any, Any]) -> bool:
    return not isinstance(pair[1], str)


def _compared(file: ExportedFile, runs: Sequence[tuple[Any, Any]]) -> ModelOutcome:
    begun = time.monotonic()
    model = tvm_ext.compile(file.model, opt_level=file.opt_level)
    seconds, difference = 0.0, 0.0
    for inputs, wanted in runs:
        found = model.run(inputs)
        seconds = seconds or time.monotonic() - begun
        difference = max(difference, largest_difference(wanted, found))
    outcome = replace(file.outcome(MATCH), difference=difference, seconds=round(seconds, 1))
    if not file.is_timed:
        return outcome
    return replace(outcome, ratio=_ratio(file, model, runs[0][0]))


def _ratio(file: ExportedFile, model: tvm_ext.CompiledModel, inputs: Any) -> float | None:
    """ONNX Runtime's time by ours, in turns."""
    session = ReferenceSession(file.model, THREADS, exact=False)
    programs = [timed(lambda: session.run(inputs)), timed(lambda: model.run(inputs))]
    if max(program() for program in programs) > SLOWEST_SECONDS:
        return None
    taken = interleaved_seconds(programs, TIMING_SECONDS, rounds=4)
    theirs, ours = (statistics.median(samples) for samples in taken)
    return theirs / ours
