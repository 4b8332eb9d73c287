"""One communication pattern in the event simulator, beside its closed form."""

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tvm_ext.errors import InputError
from tvm_ext.hardware.wafer import communication, exchanges, reduces
from tvm_ext.hardware.wafer.communication import Communication
from tvm_ext.hardware.wafer.description import WaferDescription, check_limits
from tvm_ext.hardware.wafer.simulator import communication_patterns as programs
from tvm_ext.hardware.wafer.simulator.engine import simulate
from tvm_ext.hardware.wafer.simulator.program import Program

_DIRECTIONS = ("north", "east", "south", "west")

# Links of all routes: about a minute.
_MOST_LINKS = 500_000


@dataclass(frozen=True)
class PatternRun:
    """What is simulated.

    Attributes
    ----------
    rows, columns : int
        The grid; patterns of a line have one row.
    words : int
        Of one PE's vector, tile or edge.
    group : int, optional
        What the pattern counts by, if it has such a number.
    """

    mesh: WaferDescription
    rows: int
    columns: int
    words: int
    group: int | None = None


@dataclass(frozen=True)
class SimulatedPattern:
    """One pattern.

    Attributes
    ----------
    summary : str
        What it does.
    form : Callable[[PatternRun], Communication]
        Its closed form.
    program : Callable[[PatternRun], Program]
        The same for the simulator.
    shape : str
        "line" (one row), "rows" (the same in every row), "grid" or "square".
    group : str
        What ``group`` means; empty if the pattern has no such number.
    message_words : Callable[[PatternRun], int]
        Words of one message.
    """

    summary: str
    form: Callable[[PatternRun], Communication]
    program: Callable[[PatternRun], Program]
    shape: str = "line"
    group: str = ""
    message_words: Callable[[PatternRun], int] = lambda run: run.words

    def lines(self, run: PatternRun) -> int:
        """How many lines of the grid the closed form is repeated on."""
        return run.rows if self.shape == "rows" else 1


@dataclass(frozen=True)
class PatternResult:
    """A simulation and the closed form of the same pattern.

    Attributes
    ----------
    simulated_cycles, modelled_cycles : float
        By the simulator, and by the closed form.
    difference : float
        Modelled by simulated, less 1.
    simulated_colours, modelled_colours : int
        Routes of the router that has the most.
    word_hops, modelled_word_hops : float
        Links that words cross, added up.
    busiest_link : tuple[int, int, str, int]
        Row and column of its router, its direction, and its words.
    busiest_pe : tuple[int, int, int]
        Row and column, and the words that its tasks went through.
    """

    simulated_cycles: int
    modelled_cycles: float
    difference: float
    simulated_colours: int
    modelled_colours: int
    word_hops: int
    modelled_word_hops: float
    busiest_link: tuple[int, int, str, int]
    busiest_pe: tuple[int, int, int]


def _two_phase_group(run: PatternRun) -> int:
    return run.group or reduces.best_group(run.columns)


def _ring_part(run: PatternRun) -> int:
    return math.ceil(run.words / run.columns)


PATTERNS: dict[str, SimulatedPattern] = {
    "message": SimulatedPattern(
        "from the first PE of a line to the last",
        lambda run: communication.message(run.mesh, run.words, run.columns - 1),
        lambda run: programs.message(run.words, run.columns - 1),
    ),
    "multicast": SimulatedPattern(
        "from the first PE of a line to all others",
        lambda run: communication.multicast(run.mesh, run.words, run.columns),
        lambda run: programs.multicast(run.words, run.columns),
    ),
    "multicast-2d": SimulatedPattern(
        "from the corner of a grid to all others",
        lambda run: communication.multicast_2d(run.mesh, run.words, run.rows, run.columns),
        lambda run: programs.multicast_2d(run.words, run.rows, run.columns),
        "grid",
    ),
    "summa": SimulatedPattern(
        "the first column of PEs along the rows, the first row along the columns",
        lambda run: exchanges.summa_broadcast(
            run.mesh, run.words, run.words, run.rows, run.columns
        ),
        lambda run: programs.summa_broadcast(run.words, run.words, run.rows, run.columns),
        "grid",
    ),
    "star": SimulatedPattern(
        "reduce: all to the first PE of a line",
        lambda run: reduces.star(run.mesh, run.words, run.columns),
        lambda run: programs.star(run.words, run.columns),
    ),
    "chain": SimulatedPattern(
        "reduce: each PE of a line adds and passes on",
        lambda run: reduces.chain(run.mesh, run.words, run.columns),
        lambda run: programs.chain(run.words, run.columns),
    ),
    "tree": SimulatedPattern(
        "reduce: pairs of pairs of a line",
        lambda run: reduces.tree(run.mesh, run.words, run.columns),
        lambda run: programs.tree(run.words, run.columns),
    ),
    "two-phase": SimulatedPattern(
        "reduce: chains within groups of a line, then over their first PEs",
        lambda run: reduces.two_phase(run.mesh, run.words, run.columns, _two_phase_group(run)),
        lambda run: programs.two_phase(run.words, run.columns, _two_phase_group(run)),
        group="PEs of a group",
    ),
    "k-tree": SimulatedPattern(
        "allreduce: to the middle of groups of a line, level by level, and back",
        lambda run: reduces.k_tree(run.mesh, run.words, run.columns, run.group or 2),
        lambda run: programs.k_tree(
            run.words, run.columns, reduces.k_tree_groups(run.columns, run.group or 2)
        ),
        group="levels",
    ),
    "ring": SimulatedPattern(
        "allreduce: parts of the vector around a ring over a line, twice",
        lambda run: reduces.ring(run.mesh, run.words, run.columns),
        lambda run: programs.ring(_ring_part(run), run.columns),
        message_words=_ring_part,
    ),
    "shift": SimulatedPattern(
        "Cannon's shift: each PE of a row to the next, the last to the first",
        lambda run: exchanges.cannon_shift(run.mesh, run.words, run.columns),
        lambda run: programs.cannon_shift(run.words, run.columns, run.rows),
        "rows",
    ),
    "interleaved-shift": SimulatedPattern(
        "MeshGEMM's shift: a ring over a row with neighbours at most two hops apart",
        lambda run: exchanges.interleaved_shift(run.mesh, run.words, run.columns),
        lambda run: programs.interleaved_shift(run.words, run.columns, run.rows),
        "rows",
    ),
    "halo": SimulatedPattern(
        "each PE of a grid to its nearest in all four directions",
        lambda run: exchanges.halo(
            run.mesh, run.words, run.words, run.rows, run.columns, run.group or 1
        ),
        lambda run: programs.halo(run.words, run.words, run.rows, run.columns, run.group or 1),
        "grid",
        "PEs that an edge goes far",
    ),
    "transpose": SimulatedPattern(
        "tile (r, c) of a square grid to PE (c, r)",
        lambda run: exchanges.transpose(run.mesh, run.words, run.columns),
        lambda run: programs.transpose(run.words, run.columns),
        "square",
    ),
}


def pattern_named(name: str) -> SimulatedPattern:
    """One of ``PATTERNS``. Raises InputError, with the nearest name, for another one."""
    if name in PATTERNS:
        return PATTERNS[name]
    near = difflib.get_close_matches(name, PATTERNS, 1)
    hint = f": did you mean '{near[0]}'?" if near else ""
    raise InputError(f"there is no pattern '{name}'; expected one of {', '.join(PATTERNS)}{hint}")


def simulate_pattern(name: str, run: PatternRun) -> PatternResult:
    """Runs a pattern in the simulator and computes its closed form.

    Raises
    ------
    InputError
        There is no such pattern, or the grid, the group or the size does not suit it.
    WaferLimitError
        The mesh is smaller, or has fewer colours than the pattern needs.
    """
    pattern = pattern_named(name)
    _check(name, pattern, run)
    form = pattern.form(run)
    check_limits(run.mesh, run.rows, run.columns, form.buffer_bytes, form.colours)
    word_hops = form.energy_word_hops * pattern.lines(run)
    links = word_hops / pattern.message_words(run)
    if links > _MOST_LINKS:
        raise InputError(
            f"the messages of '{name}' on {run.rows}x{run.columns} PEs cross {links:,.0f} links; "
            f"expected at most {_MOST_LINKS:,} to simulate: choose a smaller grid"
        )
    found = simulate(run.mesh, pattern.program(run))
    carried, busy = found.link_wavelets, found.busy_cycles
    link = np.unravel_index(int(carried.argmax()), carried.shape)
    place = np.unravel_index(int(busy.argmax()), busy.shape)
    return PatternResult(
        simulated_cycles=found.cycles,
        modelled_cycles=form.cycles,
        difference=form.cycles / found.cycles - 1 if found.cycles else 0.0,
        simulated_colours=found.colours,
        modelled_colours=form.colours,
        word_hops=int(carried.sum()),
        modelled_word_hops=word_hops,
        busiest_link=(int(link[0]), int(link[1]), _DIRECTIONS[link[2]], int(carried[link])),
        busiest_pe=(int(place[0]), int(place[1]), int(busy[place])),
    )


def _check(name: str, pattern: SimulatedPattern, run: PatternRun) -> None:
    if run.rows * run.columns < 2:
        raise InputError(
            f"'{name}' on {run.rows}x{run.columns} PEs sends nothing; expected 2 PEs or more"
        )
    if pattern.shape == "line" and run.rows != 1:
        raise InputError(
            f"'{name}' runs on a line and {run.rows} rows were asked for; expected one: lines "
            "beside each other take the same cycles"
        )
    if pattern.shape in ("line", "rows") and run.columns < 2:
        raise InputError(
            f"'{name}' runs along a row and {run.columns} columns were asked for; expected 2 or "
            "more"
        )
    if pattern.shape == "square" and run.rows != run.columns:
        raise InputError(
            f"'{name}' on {run.rows}x{run.columns} PEs was asked for; expected as many rows as "
            "columns"
        )
    if run.group is not None and not pattern.group:
        grouped = ", ".join(other for other, found in PATTERNS.items() if found.group)
        raise InputError(
            f"--group was given for '{name}', which has no groups; expected it for {grouped}: "
            "leave it out"
        )
