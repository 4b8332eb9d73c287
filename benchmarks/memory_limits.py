"""What ``memory_limit=`` makes of models: limits of some shares of each model's own peak.

``memory_plans.py --limits`` prints it. Of a model with dynamic dimensions it takes usual sizes. The
slowdown is the ratio of the times of runs in turns, on one thread and within one process.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from planned_peaks import usual_shapes
from rich.table import Table

import tvm_ext
from tvm_ext.check.inputs import random_inputs
from tvm_ext.compiled_model import CompiledModel
from tvm_ext.compiler.memory_of_model import model_memory
from tvm_ext.errors import BuildError
from tvm_ext.hardware.targets import program_target
from tvm_ext.report.records import MemoryLimitRecord
from tvm_ext.report.units import ABSENT, format_bytes, format_signed_percent

# Pairs of runs at least, and for how long they go on.
_LEAST_PAIRS, _SECONDS = 11, 6.0


@dataclass(frozen=True)
class Limited:
    """What came of one limit of a model.

    Attributes
    ----------
    model : str
        Its name.
    peak, limit : int
        Bytes of the program without a limit, and the limit.
    found : int or None
        Bytes of the program with it; None where it was refused.
    refusal : str
        The message of the refusal.
    calls_again : int
        Calls that run a second time.
    predicted, measured : float or None
        Shares of the time without a limit that are added.
    is_equal : bool
        Whether all results are the same bits.
    """

    model: str
    peak: int
    limit: int
    found: int | None = None
    refusal: str = ""
    calls_again: int = 0
    predicted: float | None = None
    measured: float | None = None
    is_equal: bool = False


def limited(path: Path, shares: Sequence[float]) -> list[Limited]:
    """Plans a model with and without limits; compiles and runs what meets them.

    What is refused is refused ahead of its code, so that most limits take some seconds.
    """
    machine = program_target("cpu").with_count("cores", 1)
    shapes = None
    planned = model_memory(path, machine)
    if planned.memory.planned_peak_bytes is None:
        shapes = usual_shapes(path)
        planned = model_memory(path, machine, input_shapes=shapes)
    peak = planned.memory.planned_peak_bytes
    if not peak:
        return []
    found: list[Limited] = []
    model = None
    for share in sorted(shares, reverse=True):
        limit = int(peak * share)
        # What is refused says what the least is, and a lower limit would be refused alike.
        if found and found[-1].refusal:
            found.append(replace(found[-1], limit=limit))
            continue
        try:
            model_memory(path, machine, input_shapes=shapes, memory_limit=limit)
        except BuildError as error:
            found.append(Limited(path.stem, peak, limit, refusal=str(error)))
        else:
            model = model or tvm_ext.compile(path, machine, input_shapes=shapes)
            other = tvm_ext.compile(path, machine, input_shapes=shapes, memory_limit=limit)
            found.append(_compared(path.stem, model, other, peak, limit))
    return found


def _compared(
    name: str, model: CompiledModel, other: CompiledModel, peak: int, limit: int
) -> Limited:
    """The program with a limit that it meets beside that without."""
    inputs = random_inputs(model.inputs)
    record = other.report.memory.limit or MemoryLimitRecord(limit)
    wanted, given = model.run(inputs), other.run(inputs)
    return Limited(
        name,
        peak,
        limit,
        found=other.report.memory.planned_peak_bytes,
        calls_again=record.calls_again,
        predicted=record.predicted_slowdown,
        measured=_ratio(model, other, inputs) - 1,
        is_equal=all(np.array_equal(wanted[name], given[name], equal_nan=True) for name in wanted),
    )


def _ratio(model: Any, other: Any, inputs: Mapping[str, Any]) -> float:
    """The median of the ratios of two runs that follow each other."""
    ratios: list[float] = []
    begun = time.perf_counter()
    while len(ratios) < _LEAST_PAIRS or time.perf_counter() - begun < _SECONDS:
        pair = (model, other) if len(ratios) % 2 else (other, model)
        taken = {id(one): _seconds(one, inputs) for one in pair}
        ratios.append(taken[id(other)] / taken[id(model)])
    return statistics.median(ratios)


def _seconds(model: Any, inputs: Mapping[str, Any]) -> float:
    begun = time.perf_counter()
    model.run(inputs)
    return time.perf_counter() - begun


def limits_table(found: Sequence[Limited]) -> Table:
    """The table that is printed."""
    table = Table()
    for heading in ("model", "peak", "limit", "plan", "again", "predicted", "measured", "equal"):
        table.add_column(heading, justify="left" if heading == "model" else "right", no_wrap=True)
    for one in found:
        row = [one.model, format_bytes(one.peak), format_bytes(one.limit)]
        if one.found is None:
            table.add_row(*row, _least(one.refusal), ABSENT, ABSENT, ABSENT, ABSENT)
            continue
        changes = [
            ABSENT if share is None else format_signed_percent(share)
            for share in (one.predicted, one.measured)
        ]
        equal = "yes" if one.is_equal else "no"
        table.add_row(*row, format_bytes(one.found), str(one.calls_again), *changes, equal)
    return table


def _least(refusal: str) -> str:
    """Of a refusal what the least is."""
    _, _, text = refusal.partition(" needs ")
    return f"refused: {text.partition(' (')[0]}"
