"""What the sweep found out about one exported file."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

MATCH, REFUSED, WRONG, INTERNAL = "match", "refused", "wrong", "internal error"
NO_REFERENCE, NOT_EXPORTED = "no reference", "not exported"
CRASH, TIMEOUT = "crash", "timeout"

# What says nothing about us: ONNX Runtime does not run the file, or there is none.
UNJUDGED = (NO_REFERENCE, NOT_EXPORTED)
STATUSES = (MATCH, REFUSED, WRONG, INTERNAL, CRASH, TIMEOUT, *UNJUDGED)


@dataclass(frozen=True)
class ModelOutcome:
    """How an exported file fared.

    Attributes
    ----------
    name, family, exporter, form : str
        Of the case; the name has the file's in addition where an exporter writes several.
    status : str
        ``match`` at every size; ``refused`` with an error of ours; ``wrong`` numbers, types or
        shapes; ``internal error`` for any other exception; ``crash`` of the process; ``timeout``;
        ``no reference`` where ONNX Runtime runs it at no size; ``not exported``.
    reason : str
        One line: what was said, or what differs.
    sizes : list of dict
        The named dimensions of each run.
    difference : float
        Largest of all outputs and runs, as a share of the output's largest magnitude.
    seconds : float
        From ``compile`` to the end of the first run.
    ratio : float or None
        ONNX Runtime's time by ours, at the first sizes.
    """

    name: str
    family: str
    exporter: str
    form: str
    status: str
    reason: str = ""
    sizes: list[dict[str, int]] = field(default_factory=list)
    difference: float = 0.0
    seconds: float = 0.0
    ratio: float | None = None

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> "ModelOutcome":
        """What ``write`` wrote."""
        return cls(**json.loads(path.read_text()))
