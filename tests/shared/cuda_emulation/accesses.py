"""What the accesses of kernels cost the memories of a GPU, counted while they run.

    with emulated_builds(), counted_accesses() as kernels:
        library["kernel"](x, y)
    assert kernels[0].sectors_over_ideal == 1.0

The n-th execution of a line by each of the 32 threads of a warp is one request. Of global memory
it takes sectors of 32 bytes, ideally as many as its bytes fill; of shared memory wavefronts, in
each of which a bank of 4 bytes serves one word, ideally one for 128 bytes. Threads of a warp that
go through a line different numbers of times are put together by these numbers.
"""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from cuda_emulation.libraries import count_accesses, counted

SECTOR_BYTES = 32


@dataclass(frozen=True)
class Site:
    """A place in the CUDA code that reads or writes memory.

    Attributes
    ----------
    memory : str
        "global", "shared" or, for rows of ldmatrix and stmatrix, "matrix".
    write : bool
        Whether it writes.
    line : int
        Of the CUDA code; 0 where it is not known.
    width : int
        Bytes of a thread's access; 0 for a TMA copy.
    requests, cost, ideal, bytes : int
        Requests of warps; their sectors or wavefronts, and how few there could be; bytes that the
        warps asked for, each once a request.
    """

    memory: str
    write: bool
    line: int
    width: int
    requests: int
    cost: int
    ideal: int
    bytes: int


@dataclass(frozen=True)
class KernelAccesses:
    """The accesses of one launch, in the blocks that were counted.

    Attributes
    ----------
    name : str
        The kernel.
    grid, threads : tuple[int, int, int]
        Blocks of the grid, and threads of a block.
    shared_bytes : int
        Shared memory of a block.
    counted : int
        Blocks that were counted.
    operand_bytes : int
        Bytes of its arrays, each once.
    matrix_instructions : int
        Matrix instructions of warps; one of a warpgroup is four.
    multiply_adds : float
        In matrix instructions.
    functions : int
        Calls of exponentials, logarithms, tanh and erf by threads.
    sites : tuple[Site, ...]
        Where memory is accessed.
    source : Path
        The CUDA code.
    failed : bool
        The run ended with an error, which counts of single blocks ignore.
    """

    name: str
    grid: tuple[int, int, int]
    threads: tuple[int, int, int]
    shared_bytes: int
    counted: int
    operand_bytes: int = 0
    matrix_instructions: int = 0
    multiply_adds: float = 0.0
    functions: int = 0
    sites: tuple[Site, ...] = field(default=(), repr=False)
    source: Path = Path()
    failed: bool = False

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def share(self) -> float:
        """Of all blocks those that were counted."""
        return self.counted / self.blocks

    @property
    def sectors(self) -> int:
        """Sectors of global memory that the counted blocks asked for."""
        return self._sum("global", "cost")

    @property
    def wavefronts(self) -> int:
        """Wavefronts of shared memory in the counted blocks."""
        return self._sum("shared", "cost") + self._sum("matrix", "cost")

    @property
    def sectors_over_ideal(self) -> float:
        """1 where every request asks for as few sectors as its bytes need."""
        return self.sectors / max(1, self._sum("global", "ideal"))

    @property
    def wavefronts_over_ideal(self) -> float:
        """1 where no request has a bank conflict."""
        ideal = self._sum("shared", "ideal") + self._sum("matrix", "ideal")
        return self.wavefronts / max(1, ideal)

    @property
    def moved_bytes(self) -> float:
        """Bytes of sectors that all blocks ask for, from the caches or the device memory."""
        return self.sectors * SECTOR_BYTES / self.share

    def of(self, memory: str, write: bool | None = None) -> list[Site]:
        """The sites of a memory that write, read, or do either."""
        return [s for s in self.sites if s.memory == memory and write in (None, s.write)]

    def _sum(self, memory: str, name: str) -> int:
        return sum(getattr(site, name) for site in self.of(memory))


@contextmanager
def counted_accesses(blocks: int = 1 << 40, only: bool = False) -> Iterator[list[KernelAccesses]]:
    """Counts the accesses of kernels that run within; the list is filled at the end.

    Parameters
    ----------
    blocks : int
        Of every launch so many blocks are counted, at equal distances.
    only : bool
        Leave the other blocks out: results are then of no use, and errors are not raised.
    """
    found: list[KernelAccesses] = []
    count_accesses(blocks, only)
    try:
        yield found
    finally:
        text = counted()
        count_accesses(0, False)
    found += _read(text)


def _read(text: str) -> list[KernelAccesses]:
    kernels: list[KernelAccesses] = []
    places: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for line in text.splitlines():
        kind, *words = line.split()
        if kind == "kernel":
            name, library, _, *numbers = words
            n = [int(number) for number in numbers]
            size = ((n[0], n[1], n[2]), (n[3], n[4], n[5]), n[6], n[7])
            kernels.append(KernelAccesses(name, *size, source=Path(library).with_suffix(".cu")))
        elif kind == "failed":
            kernels[-1] = replace(kernels[-1], failed=True)
        elif kind == "work":
            work = (int(words[0]), float(words[1]), int(words[2]))
            names = ("matrix_instructions", "multiply_adds", "functions")
            kernels[-1] = replace(kernels[-1], **dict(zip(names, work, strict=True)))
        elif kind == "array":
            operand_bytes = kernels[-1].operand_bytes + int(words[0])
            kernels[-1] = replace(kernels[-1], operand_bytes=operand_bytes)
        else:
            memory, write, place, *rest = words
            key = (str(kernels[-1].source.with_suffix(".so")), place)
            places.setdefault(key, []).append((len(kernels) - 1, len(kernels[-1].sites)))
            n = [int(number) for number in rest]
            site = Site(memory, write == "1", 0, n[0], n[1], n[2], n[3], n[4])
            kernels[-1] = replace(kernels[-1], sites=(*kernels[-1].sites, site))
    return _with_lines(kernels, places)


def _with_lines(
    kernels: list[KernelAccesses], places: dict[tuple[str, str], list[tuple[int, int]]]
) -> list[KernelAccesses]:
    sites = [list(kernel.sites) for kernel in kernels]
    for library in {library for library, _ in places}:
        offsets = [offset for name, offset in places if name == library]
        for offset, line in zip(offsets, _lines(library, offsets), strict=True):
            for kernel, at in places[library, offset]:
                sites[kernel][at] = replace(sites[kernel][at], line=line)
    return [replace(kernel, sites=tuple(s)) for kernel, s in zip(kernels, sites, strict=True)]


def _lines(library: str, offsets: Sequence[str]) -> list[int]:
    """Lines of the CUDA code; of inlined functions the line where the kernel calls them."""
    # One byte back from where an access returns to, into its own instruction.
    places = [hex(int(offset, 16) - 1) for offset in offsets]
    said = subprocess.run(
        ["addr2line", "-a", "-i", "-e", library, *places], capture_output=True, text=True
    )
    lines: list[int] = []
    for line in said.stdout.splitlines():
        if line.startswith("0x"):
            lines.append(0)
        else:
            number = line.rpartition(":")[2].partition(" ")[0]
            lines[-1] = int(number) if number.isdigit() else 0
    return lines if len(lines) == len(places) else [0] * len(places)
