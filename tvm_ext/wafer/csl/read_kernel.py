"""Reads a scheduled kernel as the program of one PE."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.affine import Affine
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW
from tvm_ext.tuning.wafer.loops import Home, Place, loop_of, stated_homes
from tvm_ext.tuning.wafer.loops import MeshLoop as KernelLoop
from tvm_ext.tuning.wafer.transfers import pattern_of
from tvm_ext.wafer.csl.kernel import (
    COLUMN_NUMBER,
    FLOATS,
    INPUT,
    LOCAL,
    OUTPUT,
    ROW_NUMBER,
    Assignment,
    CslLoop,
    CslSteps,
    Item,
    Load,
    LocalTile,
    Operation,
    PeKernel,
    Repeat,
    Tensor,
    Value,
    assignments_of,
    loads_of,
    part,
    range_of,
    sum_of,
    value_of,
)
from tvm_ext.wafer.csl.messages import Messages, check_pattern

# Which part of each tensor lies in a PE, and in which order.


# An access, with the iterations of all loops around it.
_Use = tuple[Load, Mapping[int, int]]
_LINES = {ROW: ROW_NUMBER, COLUMN: COLUMN_NUMBER}


def tiles_of(
    items: Sequence[Item],
    parameters: Sequence[Tensor],
    grid: tuple[int, int],
    homes: Mapping[Tensor, Home],
) -> dict[Tensor, LocalTile]:
    """By tensor, the array of one PE: those of ``parameters`` first, in their order.

    A tensor that is sent lies as ``homes`` says, if they know it. Any other lies where it is used:
    the part of its indices that depends on the PE has to be the same wherever it is used.

    Raises NotApplicable when a PE uses what lies in another one without a message.
    """
    uses = _Uses(parameters, grid)
    uses.collect(items, {})
    sent = {tensor: homes.get(tensor) for tensor in uses.sent}
    return {
        tensor: _Tile(tensor, found, uses, sent.get(tensor)).made()
        for tensor, found in uses.of.items()
        if found
    }


class _Uses:
    """All accesses of a kernel, by tensor."""

    def __init__(self, parameters: Sequence[Tensor], grid: tuple[int, int]) -> None:
        self.of: dict[Tensor, list[_Use]] = {tensor: [] for tensor in parameters}
        self.sent: set[Tensor] = set()
        self.steps: set[int] = set()
        self._read_in_place: set[Tensor] = set()
        self._written: set[Tensor] = set()
        self._copied: list[tuple[Tensor, Tensor]] = []
        # Votes for the dimension that vector instructions go along.
        self._along: dict[Tensor, list[int]] = {}
        self.grid = dict(zip((ROW_NUMBER, COLUMN_NUMBER), grid, strict=True))

    def collect(self, items: Sequence[Item], around: Mapping[int, int]) -> None:
        """Notes the accesses of ``items``, which are inside of the loops ``around``."""
        for item in items:
            if isinstance(item, Assignment):
                self._note(item, around)
                self._read_in_place |= {load.tensor for load in item.loads}
                for load in (item.target, *item.loads):
                    self._vote(load, item)
                continue
            inside = {**around, item.loop.number: item.loop.extent}
            if isinstance(item, CslSteps):
                self.steps.add(item.loop.number)
                for message in item.messages:
                    if message.copy is not None:
                        extents = {**inside, message.within: max(1, message.per_sender)}
                        self._note(message.copy, extents)
                        (source,) = message.copy.loads
                        self.sent.add(source.tensor)
                        self._copied.append((source.tensor, message.array))
            self.collect(item.items, inside)
        for tensor in self.sent & self._read_in_place:
            raise NotApplicable(f"{tensor.name} is sent, and read where it lies as well")

    def role(self, tensor: Tensor) -> str:
        """What a tensor is for the host."""
        if not tensor.is_parameter:
            return LOCAL
        return OUTPUT if tensor in self._written else INPUT

    def order(self, tensor: Tensor) -> tuple[int, ...]:
        """Dimensions in memory: that of the vector instructions is the innermost.

        What is sent lies in the order in which it is used.
        """
        array = dict(self._copied).get(tensor, tensor)
        votes = self._along.get(array, [])
        dimensions = list(range(len(tensor.shape)))
        if not votes or len(array.shape) != len(tensor.shape):
            return tuple(dimensions)
        innermost = max(sorted(set(votes)), key=votes.count)
        return (*(d for d in dimensions if d != innermost), innermost)

    def _note(self, item: Assignment, around: Mapping[int, int]) -> None:
        loops = {one.number: one.extent for one in item.loops}
        extents = {**self.grid, **around, **loops}
        self._written.add(item.target.tensor)
        for load in (item.target, *item.loads):
            self.of.setdefault(load.tensor, []).append((load, extents))

    def _vote(self, load: Load, item: Assignment) -> None:
        if item.loops:
            vector = item.loops[-1].number
            moving = [d for d, index in enumerate(load.indices) if vector in index.factors]
            self._along.setdefault(load.tensor, []).extend(moving)


class _Tile:
    """Finds the tile of one tensor."""

    def __init__(self, tensor: Tensor, own: Sequence[_Use], uses: _Uses, home: Home | None) -> None:
        self._tensor = tensor
        self._uses = own
        self._all = uses
        self._home = home

    def made(self) -> LocalTile:
        """The tile. Raises NotApplicable if there is none that does for all uses."""
        if self._tensor.dtype not in FLOATS:
            raise NotApplicable(
                f"{self._tensor.name} is of {self._tensor.dtype}; expected float32 or float16"
            )
        cuts = [self._cut(dimension) for dimension in range(len(self._tensor.shape))]
        origins = tuple(origin for origin, _ in cuts)
        shape = tuple(extent for _, extent in cuts)
        role, order = self._all.role(self._tensor), self._all.order(self._tensor)
        return LocalTile(self._tensor, role, shape, origins, order)

    def _cut(self, dimension: int) -> tuple[Affine, int]:
        """Of one dimension, where the tile starts and how long it is."""
        home = self._home
        if home is not None:
            axis, piece = home.axes[dimension], home.pieces[dimension]
            line = _LINES.get(axis, 0)
            outer = Affine(0, {line: piece} if self._all.grid.get(line, 1) > 1 else {})
        else:
            outer = self._shared(dimension)
        ranges = [self._rest(use, dimension, outer) for use in self._uses]
        first, last = min(least for least, _ in ranges), max(most for _, most in ranges)
        if home is not None:
            first, last = 0, max(last, home.pieces[dimension] - 1)
        self._check_apart(outer, last - first + 1)
        return outer.plus(Affine(first)), last - first + 1

    def _shared(self, dimension: int) -> Affine:
        """The part of the indices that says which tile it is: the same in all uses."""
        indices = [load.indices[dimension] for load, _ in self._uses]
        loops = set(_LINES.values())
        if not self._tensor.is_parameter:
            # An array that is filled in each step holds the tile of one step.
            loops |= {
                step
                for step in self._all.steps
                if len({index.factors.get(step, 0) for index in indices}) == 1
            }
        return part(indices[0], loops)

    def _rest(self, use: _Use, dimension: int, outer: Affine) -> tuple[int, int]:
        """Least and greatest place in the tile."""
        load, extents = use
        rest = load.indices[dimension].plus(outer, -1)
        if rest.factors.keys() & set(_LINES.values()):
            raise NotApplicable(
                f"PEs use parts of {self._tensor.name} that lie in other ones, without a message"
            )
        return range_of(rest, extents)

    def _check_apart(self, outer: Affine, extent: int) -> None:
        distances = [abs(f) for loop, f in outer.factors.items() if loop in _LINES.values()]
        if distances and extent > min(distances):
            raise NotApplicable(
                f"the parts of {self._tensor.name} in neighbouring PEs overlap: {extent} elements, "
                f"{min(distances)} apart"
            )


# What is computed beyond the end of a tensor must not change what lies before it.


def check_limits(items: Sequence[Item], tiles: Mapping[Tensor, LocalTile]) -> None:
    """Raises NotApplicable unless conditions of the blocks can be left out.

    They can where the element that is written lies beyond the end of its own tensor, in the padding
    of the tile; and where a product is added to a sum, and its factors are zeros of the padding.
    """
    everything = list(assignments_of(tuple(items)))
    zeros = _zero_padded(everything, tiles)
    for item in everything:
        for index, end in item.limits:
            if not _ends(item.target, index, end) and not _adds_zero(item, index, end, zeros):
                raise NotApplicable(
                    f"block {item.name} leaves out iterations whose results would count"
                )


def _ends(load: Load, index: Affine, end: int) -> bool:
    """Whether an element lies beyond the end of its tensor wherever ``index`` is not below ``end``.

    TVM writes 2 k + i < 4 as k < 2 where i is 0 or 1: the one is a multiple of the other, plus
    something that is not negative.
    """
    return any(
        _implies(found, size, index, end)
        for found, size in zip(load.indices, load.tensor.shape, strict=True)
    )


def _implies(bound: Affine, size: int, index: Affine, end: int) -> bool:
    common = bound.factors.keys() & index.factors.keys()
    times = min((bound.factors[loop] // index.factors[loop] for loop in common), default=0)
    rest = bound.plus(index, -times)
    # All loops begin at 0.
    grows = min(rest.factors.values(), default=0) >= 0
    return times > 0 and grows and rest.constant >= size - times * end


def _adds_zero(item: Assignment, index: Affine, end: int, zeros: set[Tensor]) -> bool:
    value = item.value
    if not isinstance(value, Operation) or value.name != "add" or value.operands[0] != item.target:
        return False
    added = value.operands[1]
    factors = [factor for factor in _factors(added) if isinstance(factor, Load)]
    ended = [load for load in factors if _ends(load, index, end)]
    moving = [load for load in loads_of(added) if index.factors.keys() & _used(load)]
    return bool(ended) and all(load in ended and load.tensor in zeros for load in moving)


def _factors(value: Value) -> list[Value]:
    """The factors of a product: if one of them is 0, it is 0."""
    if isinstance(value, Operation) and value.name in ("mul", "cast"):
        return [factor for operand in value.operands for factor in _factors(operand)]
    return [value]


def _used(load: Load) -> set[int]:
    return {loop for index in load.indices for loop in index.factors}


def _zero_padded(items: Sequence[Assignment], tiles: Mapping[Tensor, LocalTile]) -> set[Tensor]:
    """Tensors whose tiles hold zeros beyond the end: inputs, and plain copies of them."""
    found = {tensor for tensor, tile in tiles.items() if tile.role == INPUT}
    writers: dict[Tensor, list[Value]] = {}
    for item in items:
        writers.setdefault(item.target.tensor, []).append(item.value)
    for tensor, values in writers.items():
        if all(isinstance(value, Load) and value.tensor in found for value in values):
            found.add(tensor)
    return found


def read_kernel(func: tirx.PrimFunc, name: str = "main") -> PeKernel:
    """The program of one PE that the loops and annotations of ``func`` describe.

    What is read: loops over the rows and columns of the mesh, below them assignments of float32 or
    float16 elements whose indices are sums over the loops, and loops of steps. Tiles come by
    multicast along rows and columns, in each step (SUMMA) or before the work. Parts of a tile that
    lie beyond the end of a tensor are computed as well: tensors are padded with zeros to whole
    tiles.

    Raises
    ------
    NotApplicable
        The kernel does something else; the text says what.
    """
    return _Reader(func, name).kernel()


class _Reader:
    """Walks through the statements once."""

    def __init__(self, func: tirx.PrimFunc, name: str) -> None:
        if not isinstance(func.body, s_tir.SBlockRealize):
            raise NotApplicable("it has no blocks: its loops are written by hand")
        self._func = func
        self._name = name
        self._root = func.body.block
        self._counts: dict[str, set[int]] = {ROW: set(), COLUMN: set()}
        self._loops = 0
        # What the loops' variables are, by hash. A loop of one iteration is a 0.
        self._known: dict[int, Affine | None] = {}
        self._tensors: dict[Any, Tensor] = {}

    def kernel(self) -> PeKernel:
        """What was found."""
        parameters = [self._tensor(param, True) for param in self._func.params]
        items = self._items(self._root.body, [])
        if not any(self._counts.values()):
            raise NotApplicable("no loop is annotated as a row or column of the mesh")
        rows, columns = (max(self._counts[axis], default=1) for axis in (ROW, COLUMN))
        stated = stated_homes(self._root, self._func, rows, columns)
        homes = {self._tensors[buffer]: home for buffer, home in stated.items()}
        messages = Messages({ROW: columns, COLUMN: rows}, homes, self._loops)
        finished = tuple(found for item in items for found in messages.of(item))
        tiles = tiles_of(finished, parameters, (rows, columns), messages.homes)
        check_limits(finished, tiles)
        return PeKernel(self._name, rows, columns, finished, tiles)

    def _tensor(self, buffer: Any, is_parameter: bool = False) -> Tensor:
        if buffer not in self._tensors:
            shape = tuple(static_extent(size) for size in buffer.shape)
            if None in shape:
                raise NotApplicable(f"the size of {buffer.name} is known only at run time")
            known = tuple(size for size in shape if size is not None)
            number, name = len(self._tensors), str(buffer.name)
            tensor = Tensor(number, name, str(buffer.dtype), known, is_parameter)
            self._tensors[buffer] = tensor
        return self._tensors[buffer]

    def _items(self, stmt: Any, loops: list[KernelLoop]) -> tuple[Item, ...]:
        if isinstance(stmt, tirx.SeqStmt):
            return tuple(item for one in stmt.seq for item in self._items(one, loops))
        if isinstance(stmt, tirx.For):
            return self._loop(stmt, loops)
        if isinstance(stmt, s_tir.SBlockRealize):
            return (self._assignment(stmt, loops),)
        raise NotApplicable(f"a {type(stmt).__name__} stands between the loops")

    def _loop(self, stmt: tirx.For, loops: list[KernelLoop]) -> tuple[Item, ...]:
        self._loops += 1
        loop = loop_of(stmt, self._loops)
        if loop.axis:
            self._count(loop, loops)
        number = _LINES.get(loop.axis, loop.number)
        factors = {number: 1} if loop.extent > 1 or loop.pipeline else {}
        self._known[hash(loop.var)] = Affine(0, factors)
        items = self._items(stmt.body, [*loops, loop])
        if loop.axis or not factors:
            return items
        own, inner = CslLoop(loop.number, loop.extent), _plain(items)
        if loop.pipeline:
            return (CslSteps(own, loop.pipeline > 1, (), inner),)
        if len(inner) == 1 and isinstance(inner[0], Assignment):
            # One vector instruction goes along the innermost loop.
            around = (*inner[0].loops, own) if loop.is_vector else (own, *inner[0].loops)
            return (replace(inner[0], loops=around),)
        return (Repeat(own, inner),)

    def _count(self, loop: KernelLoop, loops: Sequence[KernelLoop]) -> None:
        """Notes a loop over places."""
        counts = self._counts[loop.axis]
        counts.add(loop.extent)
        if loop.extent > 1 and any(one.axis == loop.axis and one.extent > 1 for one in loops):
            raise NotApplicable(f"its {loop.axis}s of PEs are in groups")
        if len(counts - {1}) > 1:
            raise NotApplicable(f"parts of it use different numbers of {loop.axis}s of PEs")

    def _assignment(self, realize: Any, loops: Sequence[KernelLoop]) -> Assignment:
        block, store = realize.block, realize.block.body
        name = str(block.name_hint)
        if block.init is not None or not isinstance(store, tirx.BufferStore):
            raise NotApplicable(f"block {name} does more than to assign one element")
        place = Place(loops, realize, {})
        pattern = pattern_of(place)
        check_pattern(pattern)
        conditions = [self._limit(condition) for condition in place.conditions()]
        for variable, value in zip(block.iter_vars, realize.iter_values, strict=True):
            self._known[hash(variable.var)] = sum_of(value, self._known)
        target = self._load(store.buffer, store.indices)
        value = value_of(store.value, lambda load: self._load(load.source, load.indices))
        return Assignment(name, (), target, value, tuple(conditions), pattern)

    def _load(self, buffer: Any, indices: Sequence[Any]) -> Load:
        sums = tuple(sum_of(index, self._known, f"of {buffer.name}") for index in indices)
        return Load(self._tensor(buffer), sums)

    def _limit(self, condition: Any) -> tuple[Affine, int]:
        """A condition of a block: a sum that has to stay below a number."""
        end = static_extent(condition.b) if isinstance(condition, tirx.LT) else None
        if end is None:
            raise NotApplicable(f"the condition {condition} is not the end of a tensor")
        return sum_of(condition.a, self._known), end


def _plain(items: tuple[Item, ...]) -> tuple[Assignment | Repeat, ...]:
    if any(isinstance(item, CslSteps) for item in items):
        raise NotApplicable("its steps are inside of a loop")
    return tuple(item for item in items if not isinstance(item, CslSteps))
