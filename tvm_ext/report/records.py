"""The compile report: plain records of what a compilation did, and why.

Records hold no TVM objects, only JSON values. The text form is in `text`, the page in `page`.
"""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from tvm_ext.configs.atomic_file import write_text
from tvm_ext.report.device_record import DeviceRecord
from tvm_ext.report.errors import ReportError
from tvm_ext.report.page import render_html
from tvm_ext.report.storage import not_a_report, parse
from tvm_ext.report.text import render_text, renderable

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA = 1

# ONNX operators that multiply matrices: the work that other operators are fused into.
_ANCHOR_OPERATORS = (
    *("Conv", "ConvInteger", "ConvTranspose", "FusedConv", "QLinearConv"),
    *("Einsum", "FusedMatMul", "Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"),
)


@dataclass(frozen=True)
class Decision:
    """One match of a pass: taken, or looked at and left alone.

    Attributes
    ----------
    pass_name : str
        The pass that decided.
    applied : bool
        Whether the pass changed this place.
    where : str
        Names of the original ONNX nodes, joined by " + ".
    reason : str
        What was gained, or why it was refused.
    """

    pass_name: str
    applied: bool
    where: str
    reason: str


@dataclass(frozen=True)
class PhaseRecord:
    """Wall time, in seconds, of one phase: import, graph passes, ..., build."""

    name: str
    seconds: float


@dataclass(frozen=True)
class PassRecord:
    """One pass of the pipeline.

    Attributes
    ----------
    name, level : str
        The pass, and its level: "graph", "schedule", "tile", "memory" or "target".
    seconds : float
        Wall time.
    changed : bool
        Whether the module differs after the pass.
    applied, refused : int
        Number of matches taken, and of near matches left alone.
    skipped : str
        Why the pass did not run, for example "disabled by --disable-pass"; "" if it ran.
    decisions : list[Decision]
        The matches, in the order in which the pass met them.
    """

    name: str
    level: str
    seconds: float
    changed: bool
    applied: int
    refused: int
    skipped: str = ""
    decisions: list[Decision] = field(default_factory=list)


@dataclass(frozen=True)
class GraphRecord:
    """Operator counts along the road from ONNX nodes to kernels.

    Attributes
    ----------
    onnx_nodes, prepared_nodes : dict[str, int]
        Operator to number of nodes, in the model as given and after its preparation at ONNX level.
    relax_before, relax_after : dict[str, int]
        Operator to number of calls, before and after the graph passes.
    kernels_before_fusion, kernels : int
        Kernel calls of one run, before and after fusion.
    batch_norms_left : int
        Batch normalisations that were not folded away.
    """

    onnx_nodes: dict[str, int] = field(default_factory=dict)
    prepared_nodes: dict[str, int] = field(default_factory=dict)
    relax_before: dict[str, int] = field(default_factory=dict)
    relax_after: dict[str, int] = field(default_factory=dict)
    kernels_before_fusion: int = 0
    kernels: int = 0
    batch_norms_left: int = 0

    @property
    def anchors(self) -> int:
        """Number of convolutions and matrix multiplications in the prepared model."""
        nodes = self.prepared_nodes or self.onnx_nodes
        return sum(nodes.get(operator, 0) for operator in _ANCHOR_OPERATORS)

    @property
    def kernels_per_anchor(self) -> float | None:
        """Kernel calls per convolution or matmul, None without any; 1 is as fused as can be."""
        return self.kernels / self.anchors if self.anchors else None


@dataclass(frozen=True)
class KernelRecord:
    """One kernel, which a run calls ``calls`` times.

    Attributes
    ----------
    name : str
        Name of the PrimFunc.
    calls : int
        Calls in one run.
    origins : list[str]
        One entry a call: names of the ONNX nodes it computes, for example "conv1 + relu1".
    schedule, source : str
        The schedule, for example "register tile", and where it came from: "record", "template",
        "tvm rule" or "generic".
    reason : str
        Why this schedule was taken.
    refusals : list[str]
        What was tried before it, and why each was not taken.
    flops, bytes : float
        Floating-point operations, and bytes moved, of one call.
    estimated_seconds : float
        Modelled time of one call. Never a measured one.
    tuned : str
        "hit" when a tuned record was used, "miss" when records were given and none fits.
    miss : str
        Why none fits.
    """

    name: str
    calls: int
    origins: list[str]
    schedule: str
    source: str
    reason: str
    refusals: list[str]
    flops: float
    bytes: float
    estimated_seconds: float
    tuned: str = ""
    miss: str = ""

    @property
    def total_seconds(self) -> float:
        """Modelled time of all calls of one run, in seconds."""
        return self.calls * self.estimated_seconds


@dataclass(frozen=True)
class MemoryRecord:
    """Memory of one run, in bytes.

    Attributes
    ----------
    planned_peak_bytes, unplanned_bytes : int
        Peak of the intermediate buffers as planned, and their sum if none were reused.
    weights_bytes : int
        Constants of the compiled model.
    dynamic : bool
        Whether some buffer's size is known only at run time; such buffers are not counted.
    """

    planned_peak_bytes: int = 0
    unplanned_bytes: int = 0
    weights_bytes: int = 0
    dynamic: bool = False

    @property
    def saved_share(self) -> float:
        """Share (0 to 1) of the unplanned bytes that planning saves."""
        if self.unplanned_bytes <= 0:
            return 0.0
        return max(0.0, 1.0 - self.planned_peak_bytes / self.unplanned_bytes)


@dataclass
class CompileReport:
    """Everything that one compilation did.

    ``target`` holds JSON values only. ``inputs`` and ``outputs`` are one line of text a tensor.
    ``device`` is there for GPUs only.
    Phases and passes are in the order in which they ran.
    """

    model: str
    opt_level: str
    target: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    phases: list[PhaseRecord] = field(default_factory=list)
    graph: GraphRecord = field(default_factory=GraphRecord)
    passes: list[PassRecord] = field(default_factory=list)
    kernels: list[KernelRecord] = field(default_factory=list)
    memory: MemoryRecord = field(default_factory=MemoryRecord)
    warnings: list[str] = field(default_factory=list)
    device: DeviceRecord | None = None

    @property
    def model_name(self) -> str:
        """The model's file name, without its folder."""
        return re.split(r"[\\/]", self.model.rstrip("\\/"))[-1]

    @property
    def total_seconds(self) -> float:
        """Compile time: the sum of the phases, in seconds."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def estimated_seconds(self) -> float:
        """Modelled time of one run: the sum over all kernel calls, in seconds."""
        return sum(kernel.total_seconds for kernel in self.kernels)

    @property
    def tuned_figure(self) -> str:
        """How many kernels had a tuned record, empty when none was asked for or found."""
        counted = [kernel for kernel in self.kernels if kernel.tuned]
        if not counted:
            return ""
        hits = sum(kernel.tuned == "hit" for kernel in counted)
        missed = len(counted) - hits
        return f"{hits} of {len(self.kernels)} kernels" + (f", {missed} missed" if missed else "")

    @property
    def kernel_calls(self) -> int:
        """Kernel calls of one run."""
        return sum(kernel.calls for kernel in self.kernels)

    @property
    def kernels_by_cost(self) -> list[KernelRecord]:
        """The kernels, the one with the largest modelled time of a run first."""
        return sorted(self.kernels, key=lambda kernel: (-kernel.total_seconds, kernel.name))

    @property
    def applied(self) -> int:
        """Matches taken, over all passes."""
        return sum(record.applied for record in self.passes)

    @property
    def refused(self) -> int:
        """Near matches left alone, over all passes."""
        return sum(record.refused for record in self.passes)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, with the version of this form under "schema"."""
        values = {"schema": SCHEMA, **asdict(self)}
        if self.device is None:
            # Reports of programs for a CPU read as they always did.
            del values["device"]
        return values

    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as JSON; `from_json` gives back an equal report.

        Raises
        ------
        ReportError
            If a value has no JSON form: not a number, infinite, or not a plain type.
        """
        try:
            return json.dumps(self.to_dict(), indent=indent, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ReportError(
                f"the compile report of {self.model!r} has a value without a JSON form ({error}); "
                "expected finite numbers, text, lists and dictionaries: correct that record"
            ) from error

    @classmethod
    def from_json(cls, text: str) -> "CompileReport":
        """Return the report that `to_json` wrote.

        Raises
        ------
        ReportError
            If the text is not JSON, has another schema version, or does not have exactly the
            fields of this version.
        """
        data = parse(text, SCHEMA)
        try:
            report = _ADAPTER.validate_python(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            place = ".".join(str(step) for step in first["loc"])
            raise not_a_report(f"at {place}: {first['msg']}", SCHEMA) from error
        if report.to_dict() != data:
            raise not_a_report("fields were missing, unknown or of another type", SCHEMA)
        return report

    def __rich__(self) -> "RenderableType":
        return renderable(self)

    def to_text(self, width: int = 100) -> str:
        """Return the summary that the command line prints, ``width`` characters wide."""
        return render_text(self, width)

    def to_html(self) -> str:
        """Return one self-contained page, which loads nothing from anywhere."""
        return render_html(self)

    def save_html(self, path: str | Path) -> None:
        """Write the page; a reader of ``path`` sees the old file or the whole new one.

        Raises
        ------
        OutputPathError
            If the file cannot be written.
        """
        write_text(path, self.to_html())


_ADAPTER = TypeAdapter(CompileReport)
