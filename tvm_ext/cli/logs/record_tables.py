"""Tables of ``tvm-ext logs``: what a folder of records holds."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rich.table import Table

from tvm_ext.report.records import NamedKernel, computes
from tvm_ext.report.terminal_tables import (
    FlexibleTable,
    ShortName,
    facts_table,
    names_table,
    reasons,
)
from tvm_ext.report.tuning_figures import format_gain
from tvm_ext.report.units import ABSENT, format_percent, format_seconds, plain
from tvm_ext.tuning.logs.database_files import target_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tvm_ext.tuning.logs.diff import Difference
    from tvm_ext.tuning.logs.stats import FolderFigures, SpreadFigures
    from tvm_ext.tuning.logs.summary import BestSchedule, KernelSummary
    from tvm_ext.tuning.logs.verify import Verified


def summaries_table(summaries: "list[KernelSummary]") -> Table:
    """What was reached for each kernel on each target."""
    rows = _Rows(summaries, [one.is_modelled for one in summaries])
    numbers = (">Default", ">Best", ">Gain", *rows.mark_columns)
    more = (">Trials", ">Failed", ">Spread@90", "Confirmed@90", "~Schedule@100")
    table = FlexibleTable(rows.title("Kernels"), *rows.columns, *numbers, *more)
    for summary in summaries:
        times = summary.times
        table.add_row(
            *rows.cells(summary),
            format_seconds(times.default_seconds),
            format_seconds(times.best_seconds),
            format_gain(times.gain),
            *rows.mark(summary.is_modelled),
            f"{summary.trials:,}",
            f"{sum(summary.failed.values()):,}",
            _spread_cell(times.spread),
            _confirmed(summary),
            _template(times.schedule),
        )
    return table


class _KernelOnTarget(NamedKernel, Protocol):
    @property
    def kernel(self) -> str: ...
    @property
    def target(self) -> dict[str, Any]: ...


class _Rows:
    """Columns that say what a row is about, no more than tell the rows apart.

    Targets where there are several, and a mark for times of a model where there are any.
    """

    def __init__(self, kernels: Sequence[_KernelOnTarget], modelled: Sequence[bool]) -> None:
        self._targets = {target_text(one.target) for one in kernels}
        self._has_modelled = any(modelled)
        self.columns = ["~Computes", *(["~Target"] if len(self._targets) > 1 else [])]
        self.mark_columns = [""] if self._has_modelled else []

    def title(self, words: str) -> str:
        """``words``, with the target where all rows are for one."""
        return f"{words} on {plain(*self._targets)}" if len(self._targets) == 1 else words

    def cells(self, kernel: _KernelOnTarget) -> "list[RenderableType]":
        """The cells of ``columns``."""
        words = [computes(kernel), *([target_text(kernel.target)] if len(self.columns) > 1 else [])]
        return [ShortName(word) for word in words]

    def mark(self, is_modelled: bool) -> list[str]:
        """The cells of ``mark_columns``."""
        return ["(modelled)" if is_modelled else ""] if self._has_modelled else []


def _template(described: str) -> ShortName:
    """The template of a schedule such as "register tile (rows=4)"."""
    return ShortName(described.partition(" (")[0])


def names_of(kernels: "Sequence[tuple[_KernelOnTarget, str]]") -> Table:
    """The names and hashes of kernels, and their schedules with all decisions."""
    return names_table(kernels, [kernel.kernel for kernel, _ in kernels])


def _confirmed(summary: "KernelSummary") -> str:
    if summary.is_modelled:
        return ABSENT
    return "yes" if summary.measured.is_confirmed else "no"


def best_table(schedules: "list[BestSchedule]") -> Table:
    """The best record of each kernel on each target."""
    rows = _Rows(schedules, [one.is_modelled for one in schedules])
    columns = (*rows.columns, ">Time", *rows.mark_columns, "~Schedule")
    table = FlexibleTable(rows.title("Best records"), *columns)
    for best in schedules:
        seconds = format_seconds(best.recorded.seconds)
        schedule = _template(best.recorded.describe())
        table.add_row(*rows.cells(best), seconds, *rows.mark(best.is_modelled), schedule)
    return table


def figures_table(figures: "FolderFigures") -> Table:
    """What a folder holds, in numbers."""
    rate = figures.trials_per_minute
    facts = {
        "Trials": f"{figures.trials} ({_counts(figures.statuses)})",
        "For": _counts(figures.purposes),
        "Unusable lines": str(figures.unreadable_lines),
        "Time": format_seconds(figures.wall_seconds),
        "Trials a minute": f"{rate:.1f}" if rate is not None else ABSENT,
        "Building": f"{format_seconds(figures.build_seconds)}, added up",
        "Running": f"{format_seconds(figures.run_seconds)}, added up",
        "Spread": _spread(figures.spread) if figures.spread is not None else "",
        "Kernels": f"{figures.kernels} with trials, {figures.workloads} with workloads",
        "Records": f"{figures.records}"
        + f" ({figures.modelled_records} modelled)" * (figures.modelled_records > 0),
        "Targets": _listed(figures.targets),
        "Hosts": _listed(figures.hosts),
        "Devices": _listed(figures.devices),
        "Models": _listed(figures.models),
        "Versions": "\n".join(
            ", ".join(f"{name} {found}" for name, found in one.items()) for one in figures.versions
        ),
    }
    return facts_table({name: value or ABSENT for name, value in facts.items()})


def sessions_table(figures: "FolderFigures") -> Table:
    """How much each session tried, and how fast."""
    numbers = (">Trials", ">Time", ">A minute", ">Building", ">Running")
    table = FlexibleTable("Sessions", "~Session", "Begun@90", *numbers)
    for session in figures.sessions:
        rate = session.trials_per_minute
        table.add_row(
            ShortName(session.run),
            session.begun or ABSENT,
            f"{session.trials:,}",
            format_seconds(session.wall_seconds),
            f"{rate:.1f}" if rate is not None else ABSENT,
            format_seconds(session.build_seconds),
            format_seconds(session.run_seconds),
        )
    return table


def _spread(spread: "SpreadFigures") -> str:
    return (
        f"half below {format_percent(spread.half)}, three quarters below "
        f"{format_percent(spread.three_quarters)}, largest {format_percent(spread.largest)}"
    )


def _spread_cell(spread: float) -> str:
    return format_percent(spread) if spread else ABSENT


def _counts(counts: Mapping[str, int]) -> str:
    """Counts by name, such as "2 build, 1 wrong"."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "0"


def _listed(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{name} ({count})" for name, count in counts.items())


def differences_table(differences: "list[Difference]") -> Table:
    """Kernels whose best times are compared."""
    modelled = [one.is_modelled for one in differences]
    rows = _Rows([one.summary for one in differences], modelled)
    numbers = (">Before", ">After", *rows.mark_columns, ">Change", ">Noise")
    table = FlexibleTable(rows.title("Best times"), *rows.columns, *numbers, "Verdict")
    for one in differences:
        change = one.change
        table.add_row(
            *rows.cells(one.summary),
            format_seconds(one.before_seconds),
            format_seconds(one.after_seconds),
            *rows.mark(one.is_modelled),
            f"{100 * change:+.1f} %" if change is not None else ABSENT,
            _spread_cell(one.noise),
            one.verdict,
        )
    return table


def verified_parts(verified: "list[Verified]") -> "list[RenderableType]":
    """Records that were built and timed again, and what happened to those that are not ok."""
    rows = _Rows([one.best for one in verified], [])
    columns = (*rows.columns, ">Default", ">Record", ">Gain", "Status", "~Schedule@100")
    table = FlexibleTable(rows.title("Records"), *columns)
    for one in verified:
        table.add_row(
            *rows.cells(one.best),
            format_seconds(one.default_seconds),
            format_seconds(one.seconds),
            format_gain(one.gain),
            one.status,
            _template(one.best.recorded.describe()),
        )
    happened = reasons("!", ((computes(one.best), one.message) for one in verified if one.message))
    return [table, *happened]


def pruned_table(gone: "Sequence[Mapping[str, Any]]") -> Table:
    """Kernels, named as JSON names them, whose slower records went."""
    table = FlexibleTable("Records that were slower than the rest", "~Kernel", "Target", ">Records")
    for one in gone:
        table.add_row(ShortName(one["name"]), plain(one["target"]), f"{one['records']:,}")
    return table
