"""The compile report: everything that one compilation did, as text, as a page and as JSON.

Its parts are in `records`, the text form is in `text`, the page in `page`; the last two bring
libraries that a run does without, so they are imported where they are asked for.
"""

import functools
import json
import re
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from tvm_ext.configs.atomic_file import write_text
from tvm_ext.configs.errors import TvmExtError
from tvm_ext.configs.former_names import GRAPH_FIELDS, PASSES, current_schedule
from tvm_ext.configs.sharding_record import ShardingRecord
from tvm_ext.report.records import (
    CODE,
    FROM_CACHE,
    DeviceRecord,
    GraphRecord,
    HostRecord,
    KernelRecord,
    MemoryRecord,
    MicroBatchRecord,
    PassRecord,
    PhaseRecord,
    PrecisionRecord,
    SizesRecord,
    StateRecord,
)
from tvm_ext.tensor_spec import listed

if TYPE_CHECKING:
    from rich.console import RenderableType


class ReportError(TvmExtError):
    """A compile report cannot be read or cannot be written."""


def parse(text: str, schema: int) -> dict[str, Any]:
    """Return the JSON object in ``text``.

    Raises
    ------
    ReportError
        If the text is not a JSON object, or its "schema" is not ``schema``.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise not_a_report(f"not JSON: {error}", schema) from error
    if not isinstance(data, dict):
        raise not_a_report(f"a JSON {type(data).__name__}, not an object", schema)
    version = data.get("schema")
    if version != schema:
        raise ReportError(
            f"found a compile report with schema {version!r}, expected schema {schema}: "
            "read it with the release that wrote it, or compile the model again"
        )
    return data


def not_a_report(problem: str, schema: int) -> ReportError:
    """Return the error for text that is not the JSON form of a report."""
    return ReportError(
        f"not a compile report ({problem}); expected the JSON form of one, schema {schema}: "
        "compile the model again"
    )


# What every report can be made into: text, JSON and a page.


class RenderedReport(ABC):
    """A report for people: as text (``print`` and rich print it), as a page, and as JSON."""

    @abstractmethod
    def __rich__(self) -> "RenderableType": ...

    @abstractmethod
    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as JSON."""

    @abstractmethod
    def to_html(self) -> str:
        """Return one self-contained HTML page, which loads no other files."""

    def __str__(self) -> str:
        """Return what ``to_text`` returns: all fields, as ``repr`` has them, fill many screens."""
        return self.to_text()

    def to_text(self, width: int = 100) -> str:
        """Return the summary that the command line prints, at most ``width`` characters wide."""
        from tvm_ext.report.terminal_tables import plain_text

        return plain_text(self.__rich__(), width)

    def save_html(self, path: str | Path) -> None:
        """Write the HTML page to ``path``, which holds the old file until the new one is complete.

        Raises
        ------
        OutputPathError
            If the file cannot be written.
        """
        write_text(path, self.to_html())

    def save(self, path: Path) -> None:
        """Write the page or the JSON, as the path's ending says; raises as ``save_html``."""
        if path.suffix == ".html":
            self.save_html(path)
        else:
            write_text(path, self.to_json() + "\n")


SCHEMA = 1


@dataclass
class CompileReport(RenderedReport):
    """A report of everything that one compilation did.

    ``target`` holds JSON values only. ``inputs`` and ``outputs`` hold one line of text for each
    tensor. ``device`` is set for GPUs only, and ``host`` for models with steps that the host
    computes. ``kernels_from_cache`` counts the kernels whose code came from an earlier compilation.
    Phases and passes are in the order in which they ran. ``specialized`` holds the reports of the
    programs for exact sizes; the phases of these programs are also listed here. If sizes are open
    until the run, ``nominal`` holds figures at usual sizes, and ``micro_batch`` says how a batch is
    cut into parts. ``precision`` is set if products were chosen for a ``max_error``, and ``state``
    for the program of a session. ``sharding`` is set for a model for several devices, whose other
    records are those of the first device.
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
    host: list[HostRecord] = field(default_factory=list)
    kernels_from_cache: int = 0
    specialized: list["CompileReport"] = field(default_factory=list)
    nominal: SizesRecord | None = None
    micro_batch: MicroBatchRecord | None = None
    precision: PrecisionRecord | None = None
    state: StateRecord | None = None
    sharding: ShardingRecord | None = None

    @property
    def model_name(self) -> str:
        """The model's file name, without its folder."""
        return re.split(r"[\\/]", self.model.rstrip("\\/"))[-1]

    @property
    def for_runs(self) -> "CompileReport":
        """The little of it that runs look at, which takes no memory to speak of."""
        return CompileReport(
            self.model, self.opt_level, memory=self.memory, state=self.state, sharding=self.sharding
        )

    @property
    def total_seconds(self) -> float:
        """Compile time: the sum of the phases, in seconds."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def is_from_cache(self) -> bool:
        """Whether an earlier compilation left the program; the rest of the report is of that."""
        names = {phase.name for phase in self.phases}
        return FROM_CACHE in names and CODE not in names

    @property
    def estimated_seconds(self) -> float | None:
        """Modelled time of one run: the sum over all kernel calls, in seconds.

        None where the time of some kernel is not known.
        """
        times = [kernel.total_seconds for kernel in self.kernels]
        known = [seconds for seconds in times if seconds is not None]
        return sum(known) if len(known) == len(times) else None

    @property
    def seconds_of_run(self) -> float | None:
        """As ``estimated_seconds``, at nominal sizes where a run decides these."""
        if self.estimated_seconds is None and self.nominal is not None:
            return self.nominal.estimated_seconds
        return self.estimated_seconds

    @property
    def micro_batch_figure(self) -> str:
        """How a batch is cut, in words; empty where it is not."""
        cut = self.micro_batch
        if cut is None or self.nominal is None:
            return ""
        where = "".join(f", {n}={s:,}" for n, s in self.nominal.sizes.items() if n != cut.dimension)
        items = cut.items_for(cut.item_elements)
        return (
            f"{items:,} or so of {cut.dimension} for a thread{f' at {where[2:]}' if where else ''}"
        )

    @property
    def symbolic_sizes(self) -> list[str]:
        """Names of the dimensions of the inputs that each run decides."""
        shapes = [text[text.rindex("[") :] for text in self.inputs if "[" in text]
        return list(dict.fromkeys(name for shape in shapes for name in _NAME.findall(shape)))

    # What users' scripts may call it.
    open_sizes = symbolic_sizes

    @property
    def not_known(self) -> str:
        """What stands where a figure would, of a program whose sizes a run decides."""
        names = listed(self.symbolic_sizes)
        if not names:
            return "not known (sizes are computed in the run)"
        return f"not known ({names} {'are' if len(self.symbolic_sizes) > 1 else 'is'} dynamic)"

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
    def specialized_figure(self) -> str:
        """For which exact sizes there are programs, empty for none."""
        sizes = [
            ", ".join(text for text in one.inputs if text not in self.inputs)
            for one in self.specialized
        ]
        return listed(sizes)

    @property
    def kernel_calls(self) -> int:
        """Kernel calls of one run."""
        return sum(kernel.calls for kernel in self.kernels)

    @property
    def kernels_by_cost(self) -> list[KernelRecord]:
        """Return the kernels, those with the largest modelled time in a run first."""
        return sorted(
            self.kernels, key=lambda kernel: (-(kernel.seconds_of_run or 0.0), kernel.name)
        )

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
        values["specialized"] = [one.to_dict() for one in self.specialized]
        # Reports without any of these are as those of versions that did not know them.
        _leave_out(values, "device", "host", "nominal", "precision", "sharding", "specialized")
        _leave_out(values, "state")
        _leave_out(values.get("nominal", {}), "work")
        _leave_out(values["memory"], "lower_bound_bytes", "planner", "weights_read_bytes", "limit")
        _leave_out(values["memory"], "kernel_bytes", "kernel_thread_bytes", "workspace_bytes")
        _leave_out(values["memory"], "program_bytes")
        for record in values["passes"]:
            _leave_out(record, "after")
        for record in values["kernels"]:
            _leave_out(record, "dtype", "symbolic", "nominal")
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
        """Return the report that `to_json` wrote, with the present names of passes and templates.

        Raises
        ------
        ReportError
            If the text is not JSON, has another schema version, or does not have exactly the
            fields of this version.
        """
        data = parse(text, SCHEMA)
        if isinstance(graph := data.get("graph"), dict):
            data["graph"] = {GRAPH_FIELDS.get(name, name): graph[name] for name in graph}
        try:
            report = _adapter().validate_python(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            place = ".".join(str(step) for step in first["loc"])
            raise not_a_report(f"at {place}: {first['msg']}", SCHEMA) from error
        if report.to_dict() != data:
            raise not_a_report("fields were missing, unknown or of another type", SCHEMA)
        report.passes = [_with_current_names(record) for record in report.passes]
        report.kernels = [
            replace(kernel, schedule=current_schedule(kernel.schedule)) for kernel in report.kernels
        ]
        return report

    def __rich__(self) -> "RenderableType":
        from tvm_ext.report.text import renderable

        return renderable(self)

    def to_html(self) -> str:
        """Return one self-contained HTML page, which loads no other files."""
        from tvm_ext.report.page import render_html

        return render_html(self)


def _leave_out(values: dict[str, Any], *names: str) -> None:
    """Takes out what is empty of some values."""
    for name in names:
        if not values.get(name):
            values.pop(name, None)


def _with_current_names(record: PassRecord) -> PassRecord:
    decisions = [
        replace(decision, pass_name=PASSES.get(decision.pass_name, decision.pass_name))
        for decision in record.decisions
    ]
    return replace(record, name=PASSES.get(record.name, record.name), decisions=decisions)


# As ``TensorSpec.describe`` writes them.
_NAME = re.compile(r"'([^']*)'")


@functools.cache
def _adapter() -> TypeAdapter[CompileReport]:
    """Made when a report is first read, which takes longer than all else of importing this."""
    return TypeAdapter(CompileReport)
