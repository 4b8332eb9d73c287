"""Reads a scheduled kernel as a program of a mesh."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tvm import s_tir, tirx

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer.limits import check_limits
from tvm_ext.hardware.wafer.program import Item, Layout, MeshProgram, Steps, Transfer
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, REDUCTIONS, ROW, Pattern
from tvm_ext.tuning.mesh_analysis.footprint import Footprint
from tvm_ext.tuning.mesh_analysis.homes import Home, home_from_access, stated_homes
from tvm_ext.tuning.mesh_analysis.loops import Access, Evaluators, Loop, NotReadable, Place, loop_of
from tvm_ext.tuning.mesh_analysis.transfers import combination, copy, pattern_of
from tvm_ext.tuning.mesh_analysis.works import work_of


def read_program(
    func: tirx.PrimFunc, name: str = "main", mesh: MeshDescription | None = None
) -> MeshProgram:
    """The program that the loops and annotations of ``func`` describe.

    Work and messages are read from the loops, the predicates and the regions, not from the shapes
    of tensors; see ``tir_schedules/wafer/annotations.py`` for what has to be annotated.

    Parameters
    ----------
    func
        A scheduled kernel.
    name
        What the program is called.
    mesh
        What the program has to fit; None to read it in any case.

    Raises
    ------
    NotReadable
        There are no loops of the mesh, an extent is no number, an index depends on data, or an
        annotation contradicts the loops.
    MeshLimitError
        ``mesh`` has too few PEs or too little memory. This is found without reading the work and
        the messages: most points of a search space have tiles that fit nowhere.
    """
    reader = _Reader(func, name)
    if mesh is not None:
        check_limits(mesh, reader.rows, reader.columns, reader.bytes_per_pe, 0)
    return reader.program()


class _Reader:
    """Walks through the statements once."""

    def __init__(self, func: tirx.PrimFunc, name: str) -> None:
        body = func.body
        if not isinstance(body, s_tir.SBlockRealize):
            raise NotReadable("the kernel has no blocks: its loops are written by hand")
        self._func = func
        self._name = name
        self._root = body.block
        self._places: list[tuple[Place, str]] = []
        self._loops = 0
        self._evaluators: Evaluators = {}
        self._tree = self._read_tree(self._root.body, [])
        if not any(loop.axis for place, _ in self._places for loop in place.loops):
            raise NotReadable("no loop is annotated as a row or column of the mesh")
        self.rows, self.columns = (self._count(axis) for axis in (ROW, COLUMN))
        self._homes = stated_homes(self._root, self._func, self.rows, self.columns)
        self._find_homes()
        self._buffers = Footprint(self._places, self._func.params).buffers()
        self._shards = self._shard_bytes()

    @property
    def bytes_per_pe(self) -> int:
        """Shards and buffers of the PE that holds the most."""
        return sum(self._shards.values()) + sum(self._buffers.values())

    def program(self) -> MeshProgram:
        """What was found, with work and messages."""
        return MeshProgram(
            self._name,
            self.rows,
            self.columns,
            self._items(self._tree, ()),
            self._shards,
            self._buffers,
            self._layouts(),
        )

    def _shard_bytes(self) -> dict[str, int]:
        shards: dict[str, int] = {}
        for buffer, home in self._homes.items():
            # Two results may have one name.
            name = str(buffer.name)
            shards[name] = shards.get(name, 0) + home.shard_bytes
        return shards

    def _read_tree(self, stmt: Any, loops: list[Loop]) -> list[Any]:
        """Statements as (loop, statements) pairs and places of blocks."""
        if isinstance(stmt, tirx.SeqStmt):
            return [item for one in stmt.seq for item in self._read_tree(one, loops)]
        if isinstance(stmt, tirx.For):
            self._loops += 1
            loop = loop_of(stmt, self._loops)
            return [(loop, self._read_tree(stmt.body, [*loops, loop]))]
        if isinstance(stmt, s_tir.SBlockRealize):
            place = Place(loops, stmt, self._evaluators)
            self._places.append((place, pattern_of(place)))
            return [len(self._places) - 1]
        raise NotReadable(f"a {type(stmt).__name__} stands between the loops; expected blocks only")

    def _count(self, axis: str) -> int:
        """PEs along one axis."""
        return max(math.prod(one.extent for one in place.mesh(axis)) for place, _ in self._places)

    def _find_homes(self) -> None:
        """Tensors without a stated home lie where they are used first."""
        params = list(self._func.params)
        for place, _ in self._places:
            for access in (*place.reads, *place.writes):
                buffer = access.source
                if buffer not in self._homes and any(buffer.same_as(one) for one in params):
                    self._homes[buffer] = home_from_access(buffer, access.indices, place)

    def _layouts(self) -> dict[int, Layout]:
        """The homes of the parameters, and over how many PEs each of them extends."""
        found = {}
        for position, buffer in enumerate(self._func.params):
            home = self._homes.get(buffer)
            if home is not None:
                extents = [
                    max(extent, _cuts(home, axis))
                    for axis, extent in zip(
                        (ROW, COLUMN), _extents(*self._decisive(buffer)), strict=True
                    )
                ]
                cut = home.shape, home.axes, home.pieces, home.element_bytes
                found[position] = Layout(str(buffer.name), *cut, *extents)
        return found

    def _decisive(self, buffer: Any) -> tuple[Place, str]:
        """The block that says where a parameter lies: the last that writes it, or its first
        reader.
        """
        writers = [one for one in self._places if _touches(one[0].writes, buffer)]
        readers = (one for one in self._places if _touches(one[0].reads, buffer))
        return writers[-1] if writers else next(readers)

    def _items(self, tree: Sequence[Any], counted: tuple[Loop, ...]) -> tuple[Item, ...]:
        found: list[Item] = []
        for node in tree:
            if isinstance(node, int):
                found += self._leaf(*self._places[node], counted)
                continue
            loop, inner = node
            if loop.axis or not self._is_repeated(loop, inner):
                # Loops of the mesh are places, not times; ordinary ones belong to the blocks.
                found += self._items(inner, counted)
                continue
            items = self._items(inner, (*counted, loop))
            found.append(Steps(loop.extent, loop.pipeline > 1, items))
        return tuple(found)

    def _is_repeated(self, loop: Loop, inner: Sequence[Any]) -> bool:
        """Whether messages are sent in each iteration, and not by the loop as a whole."""
        if loop.pipeline:
            return True
        numbers = list(_numbers(inner))
        patterns = {self._places[number][1] for number in numbers}
        return len(numbers) > 1 and bool(patterns - {"", Pattern.RESIDENT})

    def _leaf(self, place: Place, pattern: str, counted: tuple[Loop, ...]) -> list[Item]:
        if pattern == Pattern.RESIDENT:
            return []
        if not pattern:
            return [work_of(place, self.rows, self.columns, counted)]
        if _accumulates(place):
            return [combination(place, pattern, counted)]
        source = place.reads[0].source
        home = self._homes.get(source) or self._inner_home(source, place)
        found: Transfer = copy(place, pattern, counted, home)
        return [found] if found.words else []

    def _inner_home(self, buffer: Any, place: Place) -> Home:
        """An intermediate result lies where it was written."""
        for writer, _ in self._places:
            for access in writer.writes:
                if access.source.same_as(buffer):
                    return home_from_access(buffer, access.indices, writer)
        return home_from_access(buffer, place.reads[0].indices, place)


def _touches(accesses: Sequence[Access], buffer: Any) -> bool:
    return any(one.source.same_as(buffer) for one in accesses)


def _cuts(home: Home, axis: str) -> int:
    """Shards along one axis."""
    return math.prod(
        -(-size // piece)
        for size, piece, along in zip(home.shape, home.pieces, home.axes, strict=True)
        if along == axis
    )


def _extents(place: Place, pattern: str) -> tuple[int, int]:
    """Rows and columns of PEs with what a block reads or writes of a tensor.

    What is sent along a line lies in one of its PEs before, what a line adds up in one after; the
    sum of a K-tree is sent to all of them.
    """
    base, _, along = pattern.rpartition("_")
    ends_in_one = base == "multicast" or (base in REDUCTIONS and base != Pattern.K_TREE)
    single = {ROW, COLUMN} if pattern == Pattern.MULTICAST else set()
    if ends_in_one:
        # Along a row of PEs are its columns.
        single = {COLUMN if along == ROW else ROW}
    rows, columns = (
        1 if axis in single else math.prod(one.extent for one in place.mesh(axis))
        for axis in (ROW, COLUMN)
    )
    return rows, columns


def _accumulates(place: Place) -> bool:
    written = place.writes[0].source
    init = place.block.init is not None
    return init or any(read.source.same_as(written) for read in place.reads)


def _numbers(tree: Sequence[Any]) -> Iterator[int]:
    """The blocks below, by number."""
    for node in tree:
        if isinstance(node, int):
            yield node
        else:
            yield from _numbers(node[1])
