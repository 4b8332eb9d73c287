"""The log of a folder of records: a line for every trial that has ended."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tvm_ext.tuning.lines import Problem, append_line, read_lines
from tvm_ext.tuning.trial import NewerTrialError, Trial, TrialLineError, parse_trial

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
