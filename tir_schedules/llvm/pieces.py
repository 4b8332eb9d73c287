"""Cuts a nest into pieces, in each of which every branch goes one way."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

from tvm_ext.tir_schedules.llvm.borders import MAX_PIECES, branch_comparisons, changes
from tvm_ext.tir_schedules.nest import Axis, Nest, renamed, restricted, substitute


@dataclass(frozen=True)
class Cut:
    """Pieces one after the other, inside of the loops that they share.

    Attributes
    ----------
    axes : tuple[Axis, ...]
        Loops around all pieces, outermost first.
    parts : tuple[Nest | Cut, ...]
        The pieces; their own loops come inside.
    """

    axes: tuple[Axis, ...]
    parts: tuple["Piece", ...]


Piece = Union[Nest, Cut]  # noqa: UP007  (a string cannot be joined with |)

KeepWhole = Callable[[Nest, int], bool]


def cut(nest: Nest, keep_whole: KeepWhole = lambda nest, axis: False) -> Piece:
    """``nest`` itself when it has no branches to get rid of, or when it would be too many pieces.

    ``keep_whole(nest, axis)`` says that a nest is not to be cut along an axis.
    """
    pieces = _cut(nest, keep_whole, MAX_PIECES)
    return nest if pieces is None else pieces


def leaves(piece: Piece) -> list[Nest]:
    """The nests of a piece, with their own loops only."""
    if isinstance(piece, Nest):
        return [piece]
    return [leaf for part in piece.parts for leaf in leaves(part)]


def _cut(nest: Nest, keep_whole: KeepWhole, budget: int) -> Piece | None:
    found = _first_border(nest)
    if found is None or keep_whole(nest, found[0]):
        return nest
    position, borders = found
    if len(borders) + 1 > budget:
        return None
    starts = (0, *borders)
    ends = (*borders, nest.axes[position].extent)
    parts: list[Piece] = []
    for start, end in zip(starts, ends, strict=True):
        part = _cut(restricted(nest, position, start, end - start), keep_whole, budget)
        if part is None:
            return None
        parts.append(part)
        budget -= len(leaves(part))
    # Loops outside of the one that is cut are still the same in every part.
    return Cut((), tuple(parts)) if budget >= 0 else None


def _first_border(nest: Nest) -> tuple[int, tuple[int, ...]] | None:
    """The outermost axis along which a branch changes, and where."""
    loops = [(axis.var, axis.extent) for axis in nest.axes]
    positions: dict[int, set[int]] = {}
    for comparison in branch_comparisons(nest.store.value):
        found = changes(comparison, loops)
        if found is not None and found[1]:
            positions.setdefault(found[0], set()).update(found[1])
    if not positions:
        return None
    first = min(positions)
    return first, tuple(sorted(positions[first]))


def with_leaves(piece: Piece, change: Callable[[Nest], Nest]) -> Piece:
    """The same pieces, each nest of which is changed."""
    if isinstance(piece, Nest):
        return change(piece)
    return Cut(piece.axes, tuple(with_leaves(part, change) for part in piece.parts))


def with_own_loops(piece: Cut) -> Cut:
    """The same pieces with variables of their own for the loops that they share."""
    axes, names = renamed(piece.axes)

    def moved(nest: Nest) -> Nest:
        return nest.with_expressions(lambda e: substitute(e, names))

    return Cut(axes, tuple(with_leaves(part, moved) for part in piece.parts))


def sharing_loops(piece: Piece) -> Piece:
    """Takes the outer loops that all pieces have in common out of them.

    Rows of the result are then written one after the other, each from all of its pieces.
    """
    if isinstance(piece, Nest):
        return piece
    parts = tuple(sharing_loops(part) for part in piece.parts)
    nests = [part for part in parts if isinstance(part, Nest)]
    if len(nests) < len(parts):
        return Cut(piece.axes, parts)
    count = 0
    while all(len(nest.axes) > count + 1 for nest in nests) and _same(nests, count):
        count += 1
    inner = tuple(Nest(nest.axes[count:], nest.store) for nest in nests)
    return Cut((*piece.axes, *nests[0].axes[:count]), inner)


def _same(nests: list[Nest], position: int) -> bool:
    first = nests[0].axes[position].var
    return all(nest.axes[position].var.same_as(first) for nest in nests)
