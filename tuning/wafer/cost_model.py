"""What a scheduled kernel costs on a mesh."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir.utils import derived_object

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.description import WaferDescription, WaferLimitError, check_limits
from tvm_ext.hardware.wafer.program import Item, Layout, Steps, Transfer, WaferProgram
from tvm_ext.hardware.wafer.program_cost import WaferCost, program_cost
from tvm_ext.tir_schedules.analysis.buffer_access import among, element_bytes
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, REDUCTIONS, ROW, Pattern
from tvm_ext.tuning.cost_models.base import FormulaModel
from tvm_ext.tuning.wafer.loops import (
    Evaluators,
    Home,
    MeshLoop,
    Place,
    RegionAccess,
    home_from_access,
    loop_of,
    stated_homes,
)
from tvm_ext.tuning.wafer.transfers import combination, copy, pattern_of
from tvm_ext.tuning.wafer.vector_instructions import work_of

# Bytes of the buffers that live in one PE while a kernel runs.


class Footprint:
    """Sizes of buffers, from the regions that one PE touches.

    A buffer that is filled anew in every step needs the region of one step; with the messages of
    the next step under way, twice that. A resident copy of a tensor is the tensor's own shard.
    """

    def __init__(self, places: Sequence[tuple[Place, str]], params: Sequence[Any]) -> None:
        self._places = places
        self._params = list(params)

    def buffers(self) -> dict[str, int]:
        """By name, bytes in the PE that needs the most."""
        uses: dict[Any, list[tuple[Place, RegionAccess]]] = {}
        patterns: dict[Any, str] = {}
        for place, pattern in self._places:
            for access in (*place.reads, *place.writes):
                if not among(access.source, self._params):
                    uses.setdefault(access.source, []).append((place, access))
            if pattern:
                patterns[place.writes[0].source] = pattern
        sizes: dict[str, int] = {}
        for buffer, found in uses.items():
            if patterns.get(buffer) != Pattern.RESIDENT:
                # Two of them may have one name.
                name = str(buffer.name)
                size = _bytes(buffer, found, patterns.get(buffer, ""))
                sizes[name] = sizes.get(name, 0) + size
        return sizes


def _bytes(buffer: Any, uses: Sequence[tuple[Place, RegionAccess]], pattern: str) -> int:
    shared = _shared_loops([place for place, _ in uses])
    sizes = [1] * len(buffer.shape)
    for place, access in uses:
        moving = place.inner(shared)
        for position, (index, extent) in enumerate(
            zip(access.indices, access.extents, strict=True)
        ):
            sizes[position] = max(sizes[position], _span(place, index, extent, moving))
    width = element_bytes(buffer)
    overlapped = pattern and any(one.pipeline > 1 for one in shared)
    return math.prod(sizes) * width * (2 if overlapped else 1)


def _shared_loops(places: Sequence[Place]) -> tuple[MeshLoop, ...]:
    """The loops around all of ``places``."""
    shared = places[0].loops
    for place in places[1:]:
        count = 0
        for mine, other in zip(shared, place.loops, strict=False):
            if mine.number != other.number:
                break
            count += 1
        shared = shared[:count]
    return shared


def _span(place: Place, index: Any, extent: int, moving: Sequence[MeshLoop]) -> int:
    try:
        return place.span(index, moving) + extent - 1
    except NotApplicable:
        # Wherever the data say: all of it, to be safe.
        return extent if not moving else math.prod(one.extent for one in moving)


def read_program(
    func: tirx.PrimFunc, name: str = "main", mesh: WaferDescription | None = None
) -> WaferProgram:
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
    NotApplicable
        There are no loops of the mesh, an extent is no number, an index depends on data, or an
        annotation contradicts the loops.
    WaferLimitError
        ``mesh`` has too few PEs or too little memory. This is found without reading the work and
        the messages: most points of a search space have tiles that fit nowhere.
    """
    reader = _ProgramReader(func, name)
    if mesh is not None:
        check_limits(mesh, reader.rows, reader.columns, reader.bytes_per_pe, 0)
    return reader.program()


class _ProgramReader:
    """Walks through the statements once."""

    def __init__(self, func: tirx.PrimFunc, name: str) -> None:
        body = func.body
        if not isinstance(body, s_tir.SBlockRealize):
            raise NotApplicable("the kernel has no blocks: its loops are written by hand")
        self._func = func
        self._name = name
        self._root = body.block
        self._places: list[tuple[Place, str]] = []
        self._loops = 0
        self._evaluators: Evaluators = {}
        self._tree = self._read_tree(self._root.body, [])
        if not any(loop.axis for place, _ in self._places for loop in place.loops):
            raise NotApplicable("no loop is annotated as a row or column of the mesh")
        self.rows, self.columns = (self._count(axis) for axis in (ROW, COLUMN))
        self._homes = stated_homes(self._root, self._func, self.rows, self.columns)
        self._find_homes()
        self._buffers = Footprint(self._places, self._func.params).buffers()
        self._shards = self._shard_bytes()

    @property
    def bytes_per_pe(self) -> int:
        """Shards and buffers of the PE that holds the most."""
        return sum(self._shards.values()) + sum(self._buffers.values())

    def program(self) -> WaferProgram:
        """What was found, with work and messages."""
        return WaferProgram(
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

    def _read_tree(self, stmt: Any, loops: list[MeshLoop]) -> list[Any]:
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
        raise NotApplicable(
            f"a {type(stmt).__name__} stands between the loops; expected blocks only"
        )

    def _count(self, axis: str) -> int:
        """PEs along one axis."""
        return max(math.prod(one.extent for one in place.mesh(axis)) for place, _ in self._places)

    def _find_homes(self) -> None:
        """Tensors without a stated home lie where they are used first."""
        params = list(self._func.params)
        for place, _ in self._places:
            for access in (*place.reads, *place.writes):
                buffer = access.source
                if buffer not in self._homes and among(buffer, params):
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

    def _decisive(self, buffer: tirx.Buffer) -> tuple[Place, str]:
        """The block that says where a parameter lies: the last that writes it, or its first
        reader.
        """
        writers = [one for one in self._places if _touches(one[0].writes, buffer)]
        readers = (one for one in self._places if _touches(one[0].reads, buffer))
        return writers[-1] if writers else next(readers)

    def _items(self, tree: Sequence[Any], counted: tuple[MeshLoop, ...]) -> tuple[Item, ...]:
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

    def _is_repeated(self, loop: MeshLoop, inner: Sequence[Any]) -> bool:
        """Whether messages are sent in each iteration, and not by the loop as a whole."""
        if loop.pipeline:
            return True
        numbers = list(_numbers(inner))
        patterns = {self._places[number][1] for number in numbers}
        return len(numbers) > 1 and bool(patterns - {"", Pattern.RESIDENT})

    def _leaf(self, place: Place, pattern: str, counted: tuple[MeshLoop, ...]) -> list[Item]:
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

    def _inner_home(self, buffer: tirx.Buffer, place: Place) -> Home:
        """An intermediate result lies where it was written."""
        for writer, _ in self._places:
            for access in writer.writes:
                if access.source.same_as(buffer):
                    return home_from_access(buffer, access.indices, writer)
        return home_from_access(buffer, place.reads[0].indices, place)


def _touches(accesses: Sequence[RegionAccess], buffer: Any) -> bool:
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


def wafer_cost(mod: tvm.IRModule, mesh: WaferDescription) -> WaferCost:
    """The modelled cost of the kernel "main" of ``mod``, scheduled for a mesh.

    Raises
    ------
    NotApplicable
        The loops cannot be read as a program of a mesh.
    WaferLimitError
        It does not fit the mesh, or a pattern of communication has numbers that make no sense.
    """
    cost = program_cost(read_program(mod["main"], mesh=mesh), mesh)
    if cost.refusal:
        raise WaferLimitError(cost.refusal)
    return cost


# Ranks candidates for a wafer-scale mesh by the cost function, without any training.


@derived_object
class WaferCostModel(FormulaModel):
    """``wafer_cost`` as a model that MetaSchedule can ask."""

    exact = True

    def modelled_seconds(self, mod: tvm.IRModule) -> float:
        """See ``FormulaModel``."""
        return wafer_cost(mod, self.machine).seconds
