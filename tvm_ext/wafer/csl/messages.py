"""Which blocks of a kernel are messages: who sends what to whom, in which step."""

from collections.abc import Mapping
from dataclasses import replace

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.affine import Affine
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW, Pattern
from tvm_ext.tuning.wafer.loops import Home
from tvm_ext.wafer.csl.kernel import (
    PLACES,
    Assignment,
    CslLoop,
    CslSteps,
    Item,
    Load,
    Multicast,
    Repeat,
    Tensor,
    assignments_of,
    range_of,
    without,
)

_ALONG = {
    Pattern.MULTICAST_ROW: (ROW,),
    Pattern.MULTICAST_COLUMN: (COLUMN,),
    # Along the sender's row first, then along all columns.
    Pattern.MULTICAST: (ROW, COLUMN),
}


class Messages:
    """Makes messages of the copies that are annotated as such.

    Parameters
    ----------
    pes : mapping
        PEs along a row, and along a column.
    homes : mapping
        Where tensors lie that are cut otherwise than they are used. Any other tensor that is sent
        lies in the first PE of each line that it is sent along.
    loops : int
        The highest number of a loop so far.

    Attributes
    ----------
    homes : dict
        The same, with pieces as long as messages need them: whole tiles of a step.
    """

    def __init__(self, pes: Mapping[str, int], homes: Mapping[Tensor, Home], loops: int) -> None:
        self.homes = dict(homes)
        self._pes = pes
        self._loops = loops

    def of(self, item: Item) -> list[Item]:
        """The item with its messages apart. Raises NotApplicable for those that are not written."""
        if isinstance(item, CslSteps):
            return [self._steps(item)]
        if isinstance(item, Assignment) and item.pattern in _ALONG:
            return list(self._alone(item))
        _check_silent(item)
        return [item]

    def _number(self) -> int:
        self._loops += 1
        return self._loops

    def _alone(self, copy: Assignment) -> list[CslSteps]:
        """A message outside of steps."""
        found: list[CslSteps] = []
        for along in _ALONG[copy.pattern]:
            once = CslLoop(self._number(), 1)
            message = self._message(copy, along, once)
            if found:
                message = replace(message, copy=None)
            found.append(CslSteps(once, False, (message,), ()))
        return found

    def _steps(self, item: CslSteps) -> CslSteps:
        item = replace(item, loop=_needed(item))
        messages: list[Multicast] = []
        items: list[Assignment | Repeat] = []
        for one in item.items:
            if not isinstance(one, Assignment) or one.pattern not in _ALONG:
                _check_silent(one)
                items.append(one)
                continue
            if items:
                raise NotApplicable("a message follows after work of the same step")
            lines = _ALONG[one.pattern]
            if len(lines) > 1 or any(lines[0] == sent.along for sent in messages):
                raise NotApplicable("a step has several messages along the same PEs")
            messages.append(self._message(one, lines[0], item.loop))
        return replace(item, messages=tuple(messages), items=tuple(items))

    def _message(self, copy: Assignment, along: str, step: CslLoop) -> Multicast:
        source = copy.value
        if not isinstance(source, Load) or source.dtype != copy.target.dtype:
            raise NotApplicable(f"block {copy.name} computes what it sends")
        axis, _ = PLACES[along]
        home = self.homes.get(source.tensor)
        cut = [d for d, found in enumerate(home.axes) if found == axis] if home else []
        array = copy.target.tensor
        if home is None or not cut:
            return Multicast(array, replace(copy, pattern=""), along)
        if len(cut) > 1:
            raise NotApplicable(f"{source.tensor.name} is cut twice along the {axis}s of PEs")
        return self._from_pieces(copy, source, along, step, cut[0])

    def _from_pieces(
        self, copy: Assignment, source: Load, along: str, step: CslLoop, dimension: int
    ) -> Multicast:
        """A message whose sender depends on the step: each PE of a line has one piece."""
        name = source.tensor.name
        index = source.indices[dimension]
        inner = without(index, {step.number})
        extents = {one.number: one.extent for one in copy.loops}
        if inner.factors.keys() - extents.keys():
            raise NotApplicable(f"the sender of {name} depends on more than the step")
        first, last = range_of(inner, extents)
        per_step = index.factors.get(step.number, 0)
        piece = self._whole_tiles(source.tensor, dimension, per_step)
        # The tile of a step starts at a multiple of its own length, so that it is in one piece.
        in_step = first == 0 and last < per_step
        if not (in_step if per_step else first >= 0 and first // piece == last // piece):
            raise NotApplicable(f"what a step needs of {name} lies in more than one PE")
        per_sender = piece // per_step if per_step else 0
        sender = first // piece
        furthest = sender + ((step.extent - 1) // per_sender if per_sender else 0)
        if furthest >= self._pes[along]:
            raise NotApplicable(f"{name} has more pieces than there are PEs along a {along}")
        within = self._number()
        # In the tensor's coordinates: the piece of the sender itself, and the tile in it.
        own = Affine(-sender * piece).plus(inner)
        if self._pes[along] > 1:
            own = own.plus(Affine(0, {PLACES[along][1]: piece}))
        if per_sender > 1:
            own = own.plus(Affine(0, {within: per_step}))
        indices = (*source.indices[:dimension], own, *source.indices[dimension + 1 :])
        prepared = replace(copy, value=Load(source.tensor, indices), pattern="")
        return Multicast(copy.target.tensor, prepared, along, sender, per_sender, within)

    def _whole_tiles(self, tensor: Tensor, dimension: int, per_step: int) -> int:
        """Elements of a piece, made longer to whole tiles of ``per_step``: the rest is padding."""
        home = self.homes[tensor]
        piece = home.pieces[dimension]
        if per_step > 0:
            piece = -(-piece // per_step) * per_step
        pieces = (*home.pieces[:dimension], piece, *home.pieces[dimension + 1 :])
        self.homes[tensor] = replace(home, pieces=pieces)
        return piece


def _needed(item: CslSteps) -> CslLoop:
    """The steps that do anything: all of the last ones may lie beyond the end of a tensor."""
    everything = list(assignments_of(item.items))
    count = item.loop.extent
    while count > 1 and all(_is_left_out(one, item.loop.number, count - 1) for one in everything):
        count -= 1
    return CslLoop(item.loop.number, count)


def _is_left_out(item: Assignment, step: int, at: int) -> bool:
    """Whether no iteration of a step is within the limits: other loops begin at 0."""
    return any(
        min(index.factors.values(), default=0) >= 0
        and index.constant + index.factors.get(step, 0) * at >= end
        for index, end in item.limits
    )


def check_pattern(pattern: str) -> None:
    """Raises NotApplicable for a pattern of messages that there is no code for."""
    if pattern not in (*_ALONG, Pattern.RESIDENT, ""):
        raise NotApplicable(f"the pattern of messages '{pattern}' is not written")


def _check_silent(item: Assignment | Repeat) -> None:
    """Raises NotApplicable if a message stands where there is no code for one."""
    if isinstance(item, Repeat):
        for one in item.items:
            _check_silent(one)
    elif item.pattern in _ALONG:
        raise NotApplicable(f"a message ({item.pattern}) stands inside of a loop that is no step")
