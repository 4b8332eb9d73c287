"""Every error that a user can cause. Any other error that leaves the package is a bug of tvm-ext.

A message is one line: what was found, what was expected, and what to do.
"""

from tvm_ext.configs.atomic_file import OutputPathError
from tvm_ext.configs.errors import (
    ArtifactError,
    BuildError,
    ConfigError,
    DefectWarning,
    FormError,
    MemoryLimitError,
    MisfitError,
    PlanError,
    PrecisionError,
    RecordsError,
    ScheduleRefusedError,
    TargetError,
    TuningError,
    TvmExtError,
    own_words,
)

__all__ = [
    "REPORT_IT",
    "UNEXPECTED",
    "ArtifactError",
    "BuildError",
    "ConfigError",
    "DefectWarning",
    "FormError",
    "InputError",
    "MemoryLimitError",
    "MisfitError",
    "ModelError",
    "OutputPathError",
    "PassError",
    "PlanError",
    "PrecisionError",
    "RecordsError",
    "ReferenceUnavailableError",
    "RunError",
    "ScheduleRefusedError",
    "TargetError",
    "TuningError",
    "TvmExtError",
    "UnsupportedOperatorError",
    "own_words",
]

# What an error that is none of ours comes to.
UNEXPECTED = "bug in tvm-ext: an unexpected error; expected a result or a refusal"

# What to do about a failure that is no fault of the model.
REPORT_IT = "report it with the file that 'tvm-ext report-bug MODEL -o report.zip' writes"


class ModelError(TvmExtError):
    """The ONNX model cannot be read or is not valid."""


class UnsupportedOperatorError(ModelError):
    """The model uses operators that have no converter.

    Attributes
    ----------
    operators : dict[str, list[str]]
        Operator name (``domain::Name`` outside the default domain) to the names of its nodes.
    reasons : dict[str, str]
        The name of a node to the reason why it cannot be compiled, for operators of which other
        nodes can.
    """

    def __init__(
        self, operators: dict[str, list[str]], reasons: dict[str, str] | None = None
    ) -> None:
        self.operators = operators
        self.reasons = reasons or {}
        listed = "; ".join(
            f"{op} (nodes: {', '.join(map(self._described, nodes))})"
            for op, nodes in operators.items()
        )
        super().__init__(
            f"{len(operators)} unsupported operator(s): {listed}; "
            "expected only operators with a converter: export the model without them"
        )

    def _described(self, node: str) -> str:
        reason = self.reasons.get(node)
        return f"{node} ({reason})" if reason else node


class InputError(TvmExtError):
    """An argument does not fit, such as the name, dtype, rank or size of an input of a run."""


class PassError(TvmExtError):
    """A pass failed, returned something that is not a module, or cannot be placed."""


class RunError(TvmExtError):
    """A compiled model failed while it ran, for example because memory ran out."""


class ReferenceUnavailableError(TvmExtError):
    """ONNX Runtime, the reference, is missing or cannot run the model."""
