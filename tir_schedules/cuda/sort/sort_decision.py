"""Into what launches a sort is cut: tiles that a block sorts, and what merges them."""

from dataclasses import dataclass

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.cuda.sort.sort_problem import SortProblem
from tvm_ext.tir_schedules.cuda.sort.sort_words import Words
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions

_TILES = (512, 1024, 2048, 4096)

# Threads of a block: three such blocks fit on a multiprocessor without registers in memory.
_MOST_THREADS = 512

# Threads of a block that sorts several short rows at a time.
_SHORT_THREADS = 128


@dataclass(frozen=True)
class Tiling:
    """A launch in which every block sorts some tiles of elements.

    Attributes
    ----------
    length : int
        Elements of each row that come in.
    tile : int
        Elements of a tile, a power of two; behind the end of a row there is nothing.
    tiles : int
        Tiles of a row.
    rows : int
        Tiles of a block, each of another row.
    run : int
        Elements of a tile that are sorted among themselves before the better halves are taken: a
        power of two, ``tile`` when all are wanted.
    kept : int
        Elements of a tile that go out.
    threads : int
        Of a block.
    """

    length: int
    tile: int
    tiles: int
    rows: int
    run: int
    kept: int
    threads: int

    @property
    def result(self) -> int:
        """Elements of each row that go out."""
        return self.kept * self.tiles if self.kept < self.tile else self.length


@dataclass(frozen=True)
class SortPlan:
    """All launches of a sort.

    Attributes
    ----------
    tilings : tuple[Tiling, ...]
        The first one of the source, each other one of what the one before it left.
    merges : tuple[int, ...]
        Then, if the last one left several tiles: the lengths of the runs that each launch merges by
        pairs.
    """

    tilings: tuple[Tiling, ...]
    merges: tuple[int, ...]


def decide_sort(
    problem: SortProblem, words: Words, machine: GpuDescription, decisions: Decisions = CLOSED_FORM
) -> SortPlan:
    """The best ones of each tile, of these again, until one tile is left; or sorted tiles, merged.

    Asks for ``tile`` and ``tiles_of_block``.
    """
    most = machine.shared_memory_bytes // words.nbytes
    options = [tile for tile in _TILES if tile <= most]
    # As many threads as elements are compared at a time; more elements where few can be left out.
    wanted = options[-1] if 4 * problem.kept > 2048 else 2048
    tile = decisions.pick("tile", options, max(n for n in options if n <= wanted))
    kept, length = problem.kept, problem.length
    tilings: list[Tiling] = []
    while True:
        row_tile = min(tile, _power_of_two(length))
        selects = 2 * _power_of_two(kept) <= row_tile
        tiles = -(-length // row_tile)
        run = _power_of_two(kept) if selects else row_tile
        going = min(kept, row_tile) if selects or tiles == 1 else row_tile
        rows = _rows_of_block(problem, row_tile, machine, decisions) if not tilings else 1
        threads = min(_MOST_THREADS, max(machine.warp_size, rows * row_tile // 2))
        found = Tiling(length, row_tile, tiles, rows if tiles == 1 else 1, run, going, threads)
        tilings.append(found)
        if tiles == 1 or not selects:
            break
        length = found.result
    merges = []
    run = tilings[-1].tile
    while tiles > 1 and run < length:
        merges.append(run)
        run *= 2
    return SortPlan(tuple(tilings), tuple(merges))


def _rows_of_block(
    problem: SortProblem, tile: int, machine: GpuDescription, decisions: Decisions
) -> int:
    """Short rows share a block, as long as all multiprocessors have one."""
    options = [1 << n for n in range(8) if (tile << n) // 2 <= 4 * _SHORT_THREADS]
    busy = [
        n
        for n in options
        if n * tile // 2 <= _SHORT_THREADS and -(-problem.rows // n) >= 2 * machine.sms
    ]
    return decisions.pick("tiles_of_block", options or [1], max(busy, default=1))


def _power_of_two(value: int) -> int:
    """The smallest power of two that is not below ``value``."""
    return 1 << (value - 1).bit_length()
