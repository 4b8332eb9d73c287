"""By which indices the elements of arrays are told apart: those of a kernel, or addresses.

An array of symbolic sizes that a kernel accesses by addresses, ``row * length + column``, has no
affine accesses. Taken apart into a row and a column it has, where the column is less than the
length. The other way round, indices that a kernel gets by taking an address apart are no affine
functions of its loops, and the address is one. So each array has a layout, the first one with which
all accesses are affine.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import islpy as isl
from tvm import tirx

from tvm_ext.polyhedral.affine_expressions import AffineReader, NotAffine
from tvm_ext.polyhedral.size_polynomials import Polynomial, product, total
from tvm_ext.tir_schedules.analysis.buffer_access import is_compact, static_extent

Layout: TypeAlias = tuple[int, ...]
"""How many axes of an array are counted as one, from the first axis on: ``(1, 2)`` of three.

Axes that are counted as one have the address within them for an index.
"""


@dataclass
class NotedAccess:
    """One access as a kernel has it, of which the relation is found later.

    Attributes
    ----------
    statement : str
        The statement's name in the relation.
    name : str
        The array's name there.
    buffer : tirx.Buffer
        The array.
    copies : list
        The variables of the loops around its allocation.
    indices : list
        Those of the element, or one address.
    reader : AffineReader
        Reads expressions of the statement.
    where : isl.Set
        The iterations in which the access takes place.
    writes, exact : bool
        Whether the element is written; whether the access surely takes place.
    reasons : list[str]
        What of it is not affine.
    others : sequence of NotedAccess
        All accesses of the array.
    is_apart : bool
        Whether what belongs to a tile that was moved back lies in a place of its own.
    """

    statement: str
    name: str
    buffer: Any
    copies: list[Any]
    indices: list[Any]
    reader: AffineReader
    where: isl.Set
    writes: bool
    exact: bool
    reasons: list[str] = field(default_factory=list)
    others: Sequence["NotedAccess"] = ()
    is_apart: bool = False
    _found: tuple[isl.Map, bool] | None = None

    @property
    def is_flat(self) -> bool:
        """Whether the one index is the address in an array of several axes."""
        return len(self.indices) == 1 < len(self.buffer.shape)

    def placed(self) -> tuple[isl.Map, bool]:
        """The relation, and whether all of its elements are surely accessed."""
        if self._found is None:
            _chosen(self.others or [self])
        return self._found or (self._relation([]), False)

    @property
    def address(self) -> Polynomial:
        """Where the element lies in the array, or the first one of a vector."""
        *firsts, last = self.indices or [0]
        start = last.base if isinstance(last, tirx.Ramp) else last
        found = [self.reader.polynomial(one) for one in [*firsts, start]]
        if self.is_flat or not self.indices:
            return found[0]
        sizes = [self.reader.polynomial(size) for size in self.buffer.shape]
        return _merged_indices(found, sizes, (len(sizes),))[0]

    @property
    def lanes(self) -> tuple[int | None, int | None] | None:
        """The step between the elements of a vector, and how many there are; None without one."""
        last = self.indices[-1] if self.indices else None
        if not isinstance(last, tirx.Ramp):
            return None
        return static_extent(last.stride), static_extent(last.lanes)

    def place(self, layout: Layout, *, is_certain: bool, required: bool) -> None:
        """Finds the relation for a layout.

        Parameters
        ----------
        is_certain : bool
            Whether indices are known to be within their axes.
        required : bool
            Whether NotAffine is raised for what is not affine; else that may be any index.
        """
        parts: list[isl.Map] = []
        exact = self.exact
        try:
            indices = self._in_layout(layout, is_certain)
        except NotAffine:
            if required:
                raise
            indices = list(self.indices)
        apart = [self.reader.moved_back(self.address)] if self.is_apart else []
        for index in [*self.copies, *apart, *indices]:
            try:
                parts.append(self.reader.index(index))
            except NotAffine as error:
                if required:
                    raise
                self.reasons.append(error.reason)
                exact = False
                parts.append(self._any())
        self._found = (self._relation(parts), exact)

    def _relation(self, parts: Sequence[isl.Map]) -> isl.Map:
        nowhere = isl.Set.universe(isl.Space.set_alloc(self.where.get_ctx(), 0, 0))
        where = self.where.intersect(self.reader.known)
        relation = isl.Map.from_domain_and_range(where, nowhere)
        for part in parts:
            relation = relation.flat_range_product(part)
        relation = relation.set_tuple_name(isl.dim_type.in_, self.statement)
        return relation.set_tuple_name(isl.dim_type.out, self.name)

    def _any(self) -> isl.Map:
        line = isl.Set.universe(isl.Space.set_alloc(self.where.get_ctx(), 0, 1))
        return isl.Map.from_domain_and_range(isl.Set.universe(self.reader.space), line)

    def _in_layout(self, layout: Layout, is_certain: bool) -> list[Any]:
        """The indices of the axes that are counted as one. Raises NotAffine."""
        if layout == _written(self):
            return list(self.indices)
        read = self.reader.polynomial
        sizes = [read(size) for size in self.buffer.shape]
        *firsts, last = self.indices
        lanes = (last.stride, last.lanes) if isinstance(last, tirx.Ramp) else None
        starts = [read(one) for one in [*firsts, last.base if lanes is not None else last]]
        if self.is_flat:
            found = self._digits(starts[0], _merged_sizes(sizes, layout), lanes, is_certain)
        else:
            found = _merged_indices(starts, sizes, layout)
        return [*found[:-1], found[-1] if lanes is None else Vector(found[-1], *lanes)]

    def _digits(
        self, start: Polynomial, sizes: Sequence[Polynomial], lanes: Any, is_certain: bool
    ) -> list[Polynomial]:
        end = 0
        if lanes is not None:
            step, count = static_extent(lanes[0]), static_extent(lanes[1])
            if step is None or count is None or step < 0:
                raise NotAffine("a vector has no known stride")
            end = step * (count - 1)
        return self.reader.digits(start, sizes, end, is_certain)


@dataclass(frozen=True)
class Vector:
    """The indices of a vector: the first one, the step to the next, and how many there are."""

    base: Polynomial
    stride: Any
    lanes: Any


def _written(access: NotedAccess) -> Layout:
    """The layout in which the indices are those of the kernel."""
    rank = len(access.buffer.shape)
    return (rank,) if access.is_flat else (1,) * rank


def _merged_sizes(sizes: Sequence[Polynomial], layout: Layout) -> list[Polynomial]:
    found = []
    for first, count in _groups(layout):
        whole = sizes[first]
        for size in sizes[first + 1 : first + count]:
            whole = product(whole, size)
        found.append(whole)
    return found


def _merged_indices(
    indices: Sequence[Polynomial], sizes: Sequence[Polynomial], layout: Layout
) -> list[Polynomial]:
    found = []
    for first, count in _groups(layout):
        whole = indices[first]
        for axis in range(first + 1, first + count):
            whole = total(product(whole, sizes[axis]), indices[axis])
        found.append(whole)
    return found


def _groups(layout: Layout) -> Iterator[tuple[int, int]]:
    """The first axis of each group, and how many it has."""
    first = 0
    for count in layout:
        yield first, count
        first += count


class Layouts:
    """The layouts of a kernel's arrays.

    Parameters
    ----------
    accesses : sequence of NotedAccess
        All accesses of the kernel; those of arrays that it writes get their relations.
    known : mapping of str to Layout, or None
        Layouts that are taken as they are, with tiles that were moved back in a place of their own.

    Attributes
    ----------
    by_array : dict[str, Layout]
        The layout of each array that the kernel writes.
    reasons : list[str]
        What is not affine, one text each.
    """

    def __init__(self, accesses: Sequence[NotedAccess], known: Mapping[str, Layout] | None) -> None:
        self.by_array: dict[str, Layout] = {}
        self.reasons: list[str] = []
        by_name: dict[str, list[NotedAccess]] = {}
        for one in accesses:
            by_name.setdefault(one.name, []).append(one)
            one.others, one.is_apart = by_name[one.name], known is not None
        for name, own in by_name.items():
            if not any(one.writes for one in own):
                continue
            if known is not None and name in known:
                self.by_array[name] = known[name]
                _place(own, known[name], is_certain=True, required=False)
            else:
                self.by_array[name] = _chosen(own)
            self.reasons += [reason for one in own for reason in one.reasons]


def _chosen(accesses: Sequence[NotedAccess]) -> Layout:
    """The first layout of an array with which all accesses are affine; they are placed."""
    for layout in _possible(accesses[0]):
        try:
            _place(accesses, layout, is_certain=False, required=True)
        except NotAffine:
            continue
        return layout
    written = _written(accesses[0])
    _place(accesses, written, is_certain=True, required=False)
    return written


def _place(
    accesses: Sequence[NotedAccess], layout: Layout, *, is_certain: bool, required: bool
) -> None:
    for one in accesses:
        one.place(layout, is_certain=is_certain, required=required)


def _possible(access: NotedAccess) -> Iterator[Layout]:
    """The layout of a kernel first, then the others, those of most axes first."""
    written = _written(access)
    yield written
    rank = len(access.buffer.shape)
    if is_compact(access.buffer, True) and rank <= _MOST_AXES:
        yield from (one for one in sorted(_divisions(rank), key=len)[::-1] if one != written)


_MOST_AXES = 5


def _divisions(rank: int) -> Iterator[Layout]:
    """All ways to count neighbouring axes as one."""
    if rank == 0:
        yield ()
    for count in range(1, rank + 1):
        yield from ((count, *rest) for rest in _divisions(rank - count))
