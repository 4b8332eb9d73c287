"""One line of a tuning log: what was tried, where, and how it ended."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tvm_ext.tuning.lines import strict_json

FORMAT = 2
"""Version of the lines; a line with a higher one is from a newer tvm-ext.

Version 2 brought the status "resources"."""

FAILURES = ("resources", "build", "run", "timeout", "wrong")
"""Statuses of trials that came to nothing."""

STATUSES = ("ok", *FAILURES, "modelled")

Status = Literal["ok", "resources", "build", "run", "timeout", "wrong", "modelled"]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class Trial(BaseModel):
    """One candidate that was tried, with all that is needed to judge it without the session.

    Two hashes, of the run and of the candidate, make concatenated logs safe: a line that is there
    twice counts once.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    format: int = FORMAT
    run: str
    """The session that tried it."""
    kernel: Hash
    """Hash of the kernel's workload."""
    kernel_name: str
    origins: list[str] = Field(default_factory=list)
    """The model's nodes that the kernel computes."""
    model: str = ""
    candidate: Hash
    """Hash of the scheduled loops."""
    template: str = ""
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
    if it is "modelled", else None."""
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
