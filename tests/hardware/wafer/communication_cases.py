"""Random communication patterns, each as a closed form and as a program for the simulator."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from thoroughness import ALL_CASES

from tvm_ext.hardware.targets import resolve_target
from tvm_ext.hardware.wafer import communication, exchanges, reduces
from tvm_ext.hardware.wafer.communication import Communication
from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.hardware.wafer.simulator import communication_patterns as programs
from tvm_ext.hardware.wafer.simulator.program import Program

# Where every PE sends to every other one, the simulator takes two seconds for 46 of them.
ALL_TO_ALL_EXTENT = 64 if ALL_CASES else 24


@dataclass(frozen=True)
class PatternCase:
    """One pattern; ``lines`` is how many lines of the grid the closed form is repeated on."""

    text: str
    mesh: WaferDescription
    form: Communication
    program: Callable[[], Program]
    lines: int = 1


def mesh(**changes: object) -> WaferDescription:
    found = resolve_target("wse2")
    assert isinstance(found, WaferDescription)
    return WaferDescription(**(found.model_dump() | changes))


def random_case(seed: int) -> PatternCase:
    """A pattern of a random family, size and grid, half of them with other times of the links."""
    rng = random.Random(seed)
    machine = mesh() if seed % 2 else mesh(ramp_cycles=3, hop_cycles=2)
    return _FAMILIES[seed % len(_FAMILIES)](rng, machine)


def _words(rng: random.Random, largest: int = 2048) -> int:
    """1 to ``largest``, small ones as often as large ones."""
    return round(math.exp(rng.uniform(0, math.log(largest))))


def _message(rng: random.Random, machine: WaferDescription) -> PatternCase:
    words, hops = _words(rng), rng.randint(1, 63)
    form = communication.message(machine, words, hops)
    program = partial(programs.message, words, hops)
    return PatternCase(f"message {words} words {hops} hops", machine, form, program)


def _multicast(rng: random.Random, machine: WaferDescription) -> PatternCase:
    words, extent = _words(rng), rng.randint(2, 64)
    root = rng.randrange(extent)
    form = communication.multicast(machine, words, extent, root)
    program = partial(programs.multicast, words, extent, root)
    return PatternCase(f"multicast {words} words {extent} PEs from {root}", machine, form, program)


def _multicast_2d(rng: random.Random, machine: WaferDescription) -> PatternCase:
    words, rows, columns = _words(rng, 256), rng.randint(1, 64), rng.randint(2, 64)
    form = communication.multicast_2d(machine, words, rows, columns)
    program = partial(programs.multicast_2d, words, rows, columns)
    return PatternCase(f"multicast_2d {words} words {rows}x{columns}", machine, form, program)


def _simple_reduce(name: str, rng: random.Random, machine: WaferDescription) -> PatternCase:
    words, extent = _words(rng, 1024), rng.randint(2, 64)
    form = getattr(reduces, name)(machine, words, extent)
    program = partial(getattr(programs, name), words, extent)
    return PatternCase(f"{name} {words} words {extent} PEs", machine, form, program)


def _two_phase(rng: random.Random, machine: WaferDescription) -> PatternCase:
    words, extent = _words(rng), rng.randint(2, 64)
    group = rng.randint(1, extent)
    form = reduces.two_phase(machine, words, extent, group)
    program = partial(programs.two_phase, words, extent, group)
    return PatternCase(f"two_phase {words} words {extent} PEs by {group}", machine, form, program)


def _ring(rng: random.Random, machine: WaferDescription) -> PatternCase:
    words, extent = _words(rng), rng.randint(2, ALL_TO_ALL_EXTENT)
    form = reduces.ring(machine, words, extent)
    program = partial(programs.ring, math.ceil(words / extent), extent)
    return PatternCase(f"ring {words} words {extent} PEs", machine, form, program)


def _k_tree(rng: random.Random, machine: WaferDescription) -> PatternCase:
    words, extent, levels = _words(rng), rng.randint(2, 64), rng.randint(1, 3)
    form = reduces.k_tree(machine, words, extent, levels)
    groups = reduces.k_tree_groups(extent, levels)
    program = partial(programs.k_tree, words, extent, groups)
    return PatternCase(f"k_tree {words} words {extent} PEs {levels} levels", machine, form, program)


def _shift(name: str, rng: random.Random, machine: WaferDescription) -> PatternCase:
    words, extent, rows = _words(rng, 256), rng.randint(2, 64), rng.randint(1, 32)
    form = getattr(exchanges, name)(machine, words, extent)
    program = partial(getattr(programs, name), words, extent, rows)
    return PatternCase(f"{name} {words} words {rows}x{extent}", machine, form, program, rows)


def _summa(rng: random.Random, machine: WaferDescription) -> PatternCase:
    numbers = (_words(rng, 256), _words(rng, 256), rng.randint(1, 64), rng.randint(2, 64))
    roots = (rng.randrange(numbers[3]), rng.randrange(numbers[2]))
    form = exchanges.summa_broadcast(machine, *numbers, *roots)
    program = partial(programs.summa_broadcast, *numbers, *roots)
    return PatternCase(f"summa {numbers} from {roots}", machine, form, program)


def _halo(rng: random.Random, machine: WaferDescription) -> PatternCase:
    hops = rng.choice([1, 1, 2, 4])
    largest = 64 if hops == 1 else 24
    words = (_words(rng, 128), _words(rng, 128))
    grid = (rng.randint(1, largest), rng.randint(2, largest))
    form = exchanges.halo(machine, *words, *grid, hops)
    program = partial(programs.halo, *words, *grid, hops)
    return PatternCase(f"halo {words} words {grid} PEs {hops} hops", machine, form, program)


def _transpose(rng: random.Random, machine: WaferDescription) -> PatternCase:
    words, extent = _words(rng, 64), rng.randint(2, ALL_TO_ALL_EXTENT)
    form = exchanges.transpose(machine, words, extent)
    program = partial(programs.transpose, words, extent)
    return PatternCase(f"transpose {words} words {extent}x{extent}", machine, form, program)


_FAMILIES: tuple[Callable[[random.Random, WaferDescription], PatternCase], ...] = (
    _message,
    _multicast,
    _multicast_2d,
    partial(_simple_reduce, "star"),
    partial(_simple_reduce, "chain"),
    partial(_simple_reduce, "tree"),
    _two_phase,
    _ring,
    _k_tree,
    partial(_shift, "cannon_shift"),
    partial(_shift, "interleaved_shift"),
    _summa,
    _halo,
    _transpose,
)
