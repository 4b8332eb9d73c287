"""Exact placement by CP-SAT, the constraint solver of OR-Tools, where that is installed.

Time and address are the two axes of rectangles that must not overlap: the times are given, the
addresses are sought. ``pip install "tvm-ext[planner]"`` installs the solver.
"""

import importlib.util
from dataclasses import dataclass

import numpy as np

from tvm_ext.memory_planner.sections import Numbers, Problem

METHOD = "CP-SAT"

# Rectangles beyond which the solver's own preparation takes longer than it is given.
_MOST_BUFFERS = 2000


@dataclass(frozen=True)
class SolverResult:
    """What the solver found: offsets if it found any, and a height that it proved to be needed.

    The height is 0 where nothing was proved.
    """

    offsets: Numbers | None
    proved_bound: int


def is_installed() -> bool:
    """Whether OR-Tools can be imported; it is not yet imported."""
    return importlib.util.find_spec("ortools") is not None


def solve(problem: Problem, known: int, least: int, effort: float, seconds: float) -> SolverResult:
    """Looks for the lowest placement.

    Parameters
    ----------
    problem : Problem
        What is placed.
    known : int
        The height of a placement that is known, in units; only lower ones are looked for.
    least : int
        A height, in units, at which the solver may stop.
    effort : float
        What it may do, in the solver's deterministic seconds: some seconds of one core each.
    seconds : float
        How long it may take. Where this does not end it, equal arguments give equal results.
    """
    if len(problem.sizes) > _MOST_BUFFERS or known <= least:
        return SolverResult(None, 0)
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    height = model.new_int_var(least, known - 1, "height")
    steps, times, addresses = [], [], []
    for index, size in enumerate(problem.sizes.tolist()):
        alignment = int(problem.alignments[index])
        step = model.new_int_var(0, (known - size) // alignment, f"step {index}")
        first, end = int(problem.firsts[index]), int(problem.ends[index])
        times.append(model.new_fixed_size_interval_var(first, end - first, f"time {index}"))
        addresses.append(
            model.new_fixed_size_interval_var(alignment * step, size, f"address {index}")
        )
        model.add(alignment * step + size <= height)
        steps.append(step)
    model.add_no_overlap_2d(times, addresses)
    model.add_cumulative(times, problem.sizes.tolist(), height)
    model.minimize(height)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.max_deterministic_time = effort
    # Several threads would race for the answer, and another run could give another one.
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return SolverResult(None, known)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return SolverResult(None, 0)
    offsets = np.array([solver.value(step) for step in steps], np.int64) * problem.alignments
    proved = int(solver.best_objective_bound)
    # Lower heights than ``least`` were not asked for, and so it says nothing about them.
    return SolverResult(offsets, proved if proved > least else 0)
