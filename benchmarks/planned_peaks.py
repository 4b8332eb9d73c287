"""How the planned memory of models compares with its bound and with TVM's own planner.

``memory_plans.py --peaks`` prints it. Of a model with dynamic dimensions it takes usual sizes. The
figures are those of the values of a run, the arena and the results; what kernels keep for
themselves beside the arena would be the same with any planner, and is left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from tvm_ext.compiler.memory_of_model import model_memory
from tvm_ext.compiler.stages import usual_sizes
from tvm_ext.onnx_frontend import import_model
from tvm_ext.report.units import ABSENT, format_bytes, format_percent

# What is asked of the planner: so many of the models at their bound, and so far below TVM's.
LEAST_AT_BOUND = 0.95
LEAST_SAVED = 0.15


@dataclass(frozen=True)
class PlannedPeak:
    """The planned memory of one model, in bytes.

    Attributes
    ----------
    model : str
        Its name.
    bound : int
        The largest sum of values that are alive at a time.
    planned : int
        What the plan takes.
    tvm : int or None
        What TVM's StaticPlanBlockMemory takes; None where it plans nothing.
    unplanned : int
        The sum of all values.
    shares : int
        Values in place of another one, and views.
    """

    model: str
    bound: int
    planned: int
    tvm: int | None
    unplanned: int
    shares: int

    @property
    def of_tvm(self) -> float | None:
        """The plan as a share of that of TVM."""
        return self.planned / self.tvm if self.tvm else None


def planned_peak(path: Path) -> PlannedPeak | None:
    """Plans a model; None where values of the run decide sizes.

    Raises TvmExtError as ``model_memory``.
    """
    found = model_memory(path)
    if found.memory.values_bytes is None:
        found = model_memory(path, input_shapes=usual_shapes(path))
    memory = found.memory
    if memory.values_bytes is None or memory.unplanned_bytes is None:
        return None
    own = memory.workspace_bytes or 0
    return PlannedPeak(
        path.stem,
        bound=(memory.lower_bound_bytes or memory.planned_peak_bytes or 0) - own,
        planned=memory.values_bytes,
        tvm=None if found.tvm_bytes is None else found.tvm_bytes - own,
        unplanned=memory.unplanned_bytes - own,
        shares=len(found.in_place) + len(found.plan.views),
    )


def usual_shapes(path: Path) -> dict[str, list[int | str]]:
    """Shapes of a model's inputs with usual sizes for those that it leaves open."""
    imported = import_model(path, None)
    sizes = usual_sizes(imported)
    return {
        spec.name: [sizes.get(size, 1) if isinstance(size, str) else size for size in spec.shape]
        for spec in imported.inputs
    }


def peaks_table(found: Sequence[PlannedPeak]) -> Table:
    """A line a model."""
    table = Table()
    headings = ("model", "largest sum", "planned", "gap", "TVM's planner", "less", "without reuse")
    for heading in (*headings, "shares"):
        table.add_column(heading, justify="left" if heading == "model" else "right", no_wrap=True)
    for one in found:
        saved = ABSENT if one.of_tvm is None else format_percent(1 - one.of_tvm)
        table.add_row(
            one.model,
            format_bytes(one.bound),
            format_bytes(one.planned),
            format_percent(one.planned / one.bound - 1) if one.bound else ABSENT,
            ABSENT if one.tvm is None else format_bytes(one.tvm),
            saved,
            f"{one.unplanned / one.planned:.1f} times" if one.planned else ABSENT,
            str(one.shares),
        )
    return table


def verdict(found: Sequence[PlannedPeak]) -> tuple[list[str], bool]:
    """What the table shows, in sentences, and whether all of it is as asked."""
    exact = sum(one.planned == one.bound for one in found)
    ratios = [one.of_tvm for one in found if one.of_tvm is not None]
    above = sum(ratio > 1 for ratio in ratios)
    mean = _mean(ratios)
    reuse = _mean([one.unplanned / one.planned for one in found if one.planned])
    sharing = _mean([one.of_tvm for one in found if one.of_tvm is not None and one.shares])
    lines = [
        f"{exact} of {len(found)} plans are the largest sum of what is alive at a time.",
        f"{above} of {len(ratios)} plans are above that of TVM's planner.",
        f"In the geometric mean they are {format_percent(1 - mean)} below it, and "
        f"{format_percent(1 - sharing)} where values are views or in place of others.",
        f"Without reuse, values take {reuse:.1f} times as much.",
    ]
    is_met = exact >= LEAST_AT_BOUND * len(found) and not above and 1 - sharing >= LEAST_SAVED
    return lines, is_met


def _mean(ratios: Sequence[float]) -> float:
    """The geometric mean; 1 of nothing."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0
