"""Which part of each tensor lies in a PE, and in which order."""

from collections.abc import Mapping, Sequence

from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW
from tvm_ext.tuning.mesh_analysis.affine import Affine
from tvm_ext.tuning.mesh_analysis.homes import Home
from tvm_ext.wafer.csl.errors import NotCovered
from tvm_ext.wafer.csl.kernel import (
    COLUMN_NUMBER,
    INPUT,
    LOCAL,
    OUTPUT,
    ROW_NUMBER,
    Assignment,
    Item,
    Steps,
    Tile,
)
from tvm_ext.wafer.csl.sums import part, range_of
from tvm_ext.wafer.csl.values import FLOATS, Load, Tensor

# An access, with the iterations of all loops around it.
_Use = tuple[Load, Mapping[int, int]]
_LINES = {ROW: ROW_NUMBER, COLUMN: COLUMN_NUMBER}


def tiles_of(
    items: Sequence[Item],
    parameters: Sequence[Tensor],
    grid: tuple[int, int],
    homes: Mapping[Tensor, Home],
) -> dict[Tensor, Tile]:
    """By tensor, the array of one PE: those of ``parameters`` first, in their order.

    A tensor that is sent lies as ``homes`` says, if they know it. Any other lies where it is used:
    the part of its indices that depends on the PE has to be the same wherever it is used.

    Raises NotCovered when a PE uses what lies in another one without a message.
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
            if isinstance(item, Steps):
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
            raise NotCovered(f"{tensor.name} is sent, and read where it lies as well")

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

    def __init__(
        self, tensor: Tensor, found: Sequence[_Use], uses: _Uses, home: Home | None
    ) -> None:
        self._tensor = tensor
        self._uses = found
        self._all = uses
        self._home = home

    def made(self) -> Tile:
        """The tile. Raises NotCovered if there is none that does for all uses."""
        if self._tensor.dtype not in FLOATS:
            raise NotCovered(
                f"{self._tensor.name} is of {self._tensor.dtype}; expected float32 or float16"
            )
        cuts = [self._cut(dimension) for dimension in range(len(self._tensor.shape))]
        origins = tuple(origin for origin, _ in cuts)
        shape = tuple(extent for _, extent in cuts)
        role, order = self._all.role(self._tensor), self._all.order(self._tensor)
        return Tile(self._tensor, role, shape, origins, order)

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
            raise NotCovered(
                f"PEs use parts of {self._tensor.name} that lie in other ones, without a message"
            )
        return range_of(rest, extents)

    def _check_apart(self, outer: Affine, extent: int) -> None:
        distances = [abs(f) for loop, f in outer.factors.items() if loop in _LINES.values()]
        if distances and extent > min(distances):
            raise NotCovered(
                f"the parts of {self._tensor.name} in neighbouring PEs overlap: {extent} elements, "
                f"{min(distances)} apart"
            )
