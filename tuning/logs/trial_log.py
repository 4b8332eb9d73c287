"""The log of a folder of records: a line for every trial, with what was tried, where, and how it
ended.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from tvm_ext.configs.former_names import TEMPLATES as FORMER_NAMES
from tvm_ext.tuning.logs.lines import Problem, append_line, read_lines, strict_json

FORMAT = 2
"""Version of the lines; a line with a higher one is from a newer tvm-ext.

Version 2 brought the status "resources".
"""

FAILURES = ("resources", "build", "run", "timeout", "wrong")
"""Statuses of trials that came to nothing."""

Status = Literal["ok", "resources", "build", "run", "timeout", "wrong", "modelled"]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
TemplateName = Annotated[str, AfterValidator(lambda name: FORMER_NAMES.get(name, name))]


class Trial(BaseModel):
    """One candidate that was tried, with all that is needed to judge it without the session.

    Two hashes, of the run and of the candidate, make concatenated logs safe: a line that is there
    twice counts once.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, defer_build=True)

    format: int = FORMAT
    run: str
    """The session that tried it."""
    kernel: Hash
    """Hash of the kernel's workload."""
    kernel_name: str
    origins: list[str] = Field(default_factory=list)
    """The model's nodes that the kernel computes."""
    model: str = ""
    sizes: list[dict[str, int]] = Field(default_factory=list)
    """Of a kernel of dynamic sizes: those of the model's dimensions that it was tuned for."""
    arguments: list[list[list[int] | int]] = Field(default_factory=list)
    """For each of ``sizes``, what the kernel got: shapes of its tensors, and numbers."""
    candidate: Hash
    """Hash of the scheduled loops."""
    template: TemplateName = ""
    """Empty for MetaSchedule's own space."""
    decisions: dict[str, int] = Field(default_factory=dict)
    trace: Any = None
    """The trace in MetaSchedule's form."""
    is_default: bool = False
    """Whether it is the schedule that a kernel without a record gets."""
    target: dict[str, Any]
    """Attributes of the TVM target."""
    versions: dict[str, str]
    host_cpu: str
    device: str = "local"
    """Where it ran: "local", the tracker and key of the RPC servers, or "model" if nowhere."""
    status: Status
    message: str = ""
    purpose: Literal["search", "confirm"] = "search"
    """Whether it was the search's trial, or one of the best measured again beside the default."""
    seconds: Seconds | None = None
    """Of one call, freed of the machine's drift; measured if the status is "ok", a model's answer
    if it is "modelled", else None. The geometric mean of a call for each of ``sizes``.
    """
    samples: list[Seconds] = Field(default_factory=list)
    """Of one call, turn by turn, as measured."""
    reference_samples: list[Seconds] = Field(default_factory=list)
    """Of the reference kernel in the same turns."""
    spread: float = 0.0
    """Interquartile range over median of the ratios of the two."""
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    seed: int = 0
    time: str
    """Wall clock, UTC, ISO 8601."""

    @property
    def is_measured(self) -> bool:
        """Whether its time was measured, and may be compared with other measured times."""
        return self.status == "ok" and self.seconds is not None

    @property
    def is_modelled(self) -> bool:
        """Whether its time is a model's answer, and may be compared with other such answers."""
        return self.status == "modelled" and self.seconds is not None

    @property
    def is_timed(self) -> bool:
        """Whether it has a time, of either kind."""
        return self.is_measured or self.is_modelled

    def to_line(self) -> str:
        """The line, without its end."""
        return json.dumps(self.model_dump(mode="json"), separators=(",", ":"), allow_nan=False)


class TrialLineError(ValueError):
    """A line of a log holds no trial; the text says why."""


class NewerTrialError(TrialLineError):
    """A line of a log was written by a newer version: not damaged, but of no use to this one."""


def parse_trial(line: str) -> Trial:
    """Reads one line.

    Raises
    ------
    TrialLineError
        The line is no JSON object, or lacks what a trial needs.
    NewerTrialError
        The line is of a newer format.
    """
    try:
        data = strict_json(line)
    except ValueError as error:
        raise TrialLineError(str(error)) from error
    if not isinstance(data, dict):
        raise TrialLineError(f"a {type(data).__name__}, not an object")
    found = data.get("format")
    if not isinstance(found, int) or found < 1:
        raise TrialLineError(f"format {found!r}; this version reads 1 to {FORMAT}")
    if found > FORMAT:
        raise NewerTrialError(f"format {found}, of a newer tvm-ext; this one reads 1 to {FORMAT}")
    try:
        return Trial.model_validate(data)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise TrialLineError(f"key '{place}': {problem['msg']}") from error


TRIALS = "trials.jsonl"


@dataclass
class TrialLog:
    """What could be read of a log.

    Attributes
    ----------
    trials : list[Trial]
        In the order of the file, without repeated lines.
    lines : list[int]
        The line's number of each, from 1.
    problems : list[Problem]
        The lines that could not be read. A cut last line is one of them.
    """

    trials: list[Trial] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True)
class TrialLine:
    """A line of a log as it is: with a trial, or with a problem.

    Attributes
    ----------
    number : int
        From 1.
    text : str
        Without its end.
    is_newer : bool
        Whether a newer version wrote it, and nothing else is wrong with it.
    """

    number: int
    text: str
    trial: Trial | None = None
    problem: Problem | None = None
    is_newer: bool = False


def trial_lines(folder: Path) -> Iterator[TrialLine]:
    """All lines of the log in ``folder`` that are not empty. Raises RecordsError."""
    path = folder / TRIALS
    for number, text, complete in read_lines(path):
        if not text.strip():
            continue
        try:
            yield TrialLine(number, text, trial=parse_trial(text))
        except TrialLineError as error:
            reason = str(error) if complete else f"cut off: {error}"
            problem = Problem(path, number, reason)
            newer = isinstance(error, NewerTrialError)
            yield TrialLine(number, text, problem=problem, is_newer=newer)


def read_trials(folder: Path) -> TrialLog:
    """Reads the log in ``folder``; it may be missing, cut or damaged. Raises RecordsError."""
    found = TrialLog()
    seen: set[str] = set()
    for line in trial_lines(folder):
        if line.problem is not None:
            found.problems.append(line.problem)
        elif line.trial is not None and line.text not in seen:
            seen.add(line.text)
            found.trials.append(line.trial)
            found.lines.append(line.number)
    return found


def append_trial(folder: Path, trial: Trial) -> None:
    """Adds a trial, and returns when it is on the disk. Raises OutputPathError."""
    append_line(folder / TRIALS, trial.to_line())
