"""How a scan is dealt to threads: along the scans or across them, and in how many parts."""

from dataclasses import dataclass

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.cuda.scan.scan_kernel import ScanKernel
from tvm_ext.tir_schedules.cuda.vector_group import powers_down
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions

# Threads of a block that scans one row, as far as the row has so much work.
_BLOCK_THREADS = 256

# Threads of a multiprocessor that are at work at the same time.
_RESIDENT = 2048

# Blocks for each multiprocessor above which a third pass over memory costs more than it brings.
_ENOUGH_BLOCKS = 2

# Tiles of a block below which it is not worth a launch of its own to cut a row.
_FEWEST_TILES = 4

# Steps of a thread below which a column is not worth several threads.
_FEWEST_STEPS = 16

_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class ScanLaunch:
    """How blocks of threads work on scans.

    Attributes
    ----------
    across : bool
        Whether neighbouring threads work on neighbouring scans, each along it, instead of on
        neighbouring elements of one.
    parts : int
        Threads of one scan in a block, a power of two.
    rows : int
        Scans of a block.
    width : int
        Neighbouring elements that a thread takes at once.
    chunk : int
        Steps of a scan that one block does.
    chunks : int
        Blocks of a scan.
    """

    across: bool
    parts: int
    rows: int
    width: int
    chunk: int
    chunks: int


def decide_scan(
    kernel: ScanKernel, widest: int, machine: GpuDescription, decisions: Decisions = CLOSED_FORM
) -> ScanLaunch:
    """The closed-form choice; asks for ``width``, ``parts``, ``rows`` and ``chunks``.

    ``widest`` is how many neighbours vectors can move.
    """
    if kernel.runs_across:
        return _across(kernel, machine, decisions)
    return _along(kernel, widest, machine, decisions)


def _along(
    kernel: ScanKernel, widest: int, machine: GpuDescription, decisions: Decisions
) -> ScanLaunch:
    warp, most = machine.warp_size, machine.max_threads_per_block
    width = decisions.pick("width", powers_down(widest), widest)
    vectors = -(-kernel.length // width)
    options = [n for n in _POWERS if warp <= n <= most and n < 2 * max(vectors, warp)]
    wanted = _BLOCK_THREADS if kernel.count >= machine.sms or vectors > most else most
    parts = decisions.pick("parts", options, max(n for n in options if n <= wanted))
    counts = [n for n in _POWERS if n * parts <= most and n < 2 * kernel.count]
    busy = [
        n for n in counts if n * parts <= _BLOCK_THREADS and kernel.count // n >= 4 * machine.sms
    ]
    rows = decisions.pick("rows", counts, max(busy, default=1))
    tile = parts * width
    tiles = -(-kernel.length // tile)
    groups = -(-kernel.count // rows)
    resident = machine.sms * max(1, _RESIDENT // (parts * rows))
    wanted = max(1, min(-(-resident // groups), tiles // 2))
    if tiles <= _FEWEST_TILES or groups >= _ENOUGH_BLOCKS * machine.sms:
        wanted = 1
    options = [n for n in _chunk_counts(tiles) if n == 1 or rows == 1]
    chunks = decisions.pick("chunks", options, max(n for n in options if n <= wanted))
    per_chunk = -(-tiles // chunks)
    return ScanLaunch(False, parts, rows, width, per_chunk * tile, -(-tiles // per_chunk))


def _across(kernel: ScanKernel, machine: GpuDescription, decisions: Decisions) -> ScanLaunch:
    warp, most = machine.warp_size, machine.max_threads_per_block
    groups = -(-kernel.count // warp)
    resident = machine.sms * _RESIDENT
    # Threads of a column until all multiprocessors are busy, each with steps enough.
    enough = max(1, resident // (groups * warp))
    useful = max(1, kernel.length // _FEWEST_STEPS)
    options = [n for n in _POWERS if n <= most // warp and n < 2 * kernel.length]
    parts = decisions.pick("parts", options, max(n for n in options if n <= min(enough, useful)))
    rows = decisions.pick("rows", [n for n in (32, 64, 128) if n * parts <= most], warp)
    tiles = -(-kernel.length // (parts * _FEWEST_STEPS))
    blocks = -(-kernel.count // rows)
    wanted = max(1, min(resident // (blocks * parts * rows), tiles // _FEWEST_TILES))
    options = _chunk_counts(tiles)
    chunks = decisions.pick("chunks", options, max(n for n in options if n <= wanted))
    chunk = -(-kernel.length // chunks)
    return ScanLaunch(True, parts, rows, 1, chunk, -(-kernel.length // chunk))


def _chunk_counts(tiles: int) -> list[int]:
    """Powers of two from 1 to the number of tiles."""
    return [1 << n for n in range(max(1, tiles).bit_length())]
