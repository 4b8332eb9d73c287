"""How the measuring of one candidate ended."""

from dataclasses import dataclass, field

from tvm_ext.tuning.candidate import Candidate
from tvm_ext.tuning.run_job import Timing
from tvm_ext.tuning.trial import Status


@dataclass(frozen=True)
class Measurement:
    """How one candidate ended.

    Attributes
    ----------
    status : str
        "ok", "resources" (it takes more than a GPU has), "build" (no code), "run" (it failed or
        died), "timeout" or "wrong" (numbers); "modelled" where the time is a model's answer.
    message : str
        What happened, when the status is not "ok".
    timing : Timing
        Seconds of the candidate and of the reference, turn by turn.
    build_seconds, run_seconds : float
        Wall time of the trial's two parts.
    """

    candidate: Candidate
    status: Status
    message: str = ""
    timing: Timing = field(default_factory=Timing)
    build_seconds: float = 0.0
    run_seconds: float = 0.0
