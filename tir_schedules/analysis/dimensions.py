"""Dimensions that the blocks of a kernel share: which loops and axes of tensors go together."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import operands_of, scans, static_extent
from tvm_ext.tir_schedules.analysis.row_kernel import buffer_key

_Node = tuple[str, int, int]


@dataclass(frozen=True)
class Dimensions:
    """Loops of different blocks that run over the same axis of a tensor are one dimension.

    Attributes
    ----------
    loops : tuple[tuple[int | None, ...], ...]
        For each block and each of its iteration variables the dimension, by number; None for one
        iteration.
    reduces : tuple[tuple[bool, ...], ...]
        Likewise, whether the variable reduces.
    extents : tuple[int, ...]
        Of each dimension.
    axes : Mapping[int, tuple[int | None, ...]]
        By ``buffer_key``, the dimension of each axis of a tensor; None for an axis of one element.
    """

    loops: tuple[tuple[int | None, ...], ...]
    reduces: tuple[tuple[bool, ...], ...]
    extents: tuple[int, ...]
    axes: Mapping[int, tuple[int | None, ...]]

    def of(self, buffer: tirx.Buffer) -> set[int]:
        """The dimensions of a tensor."""
        return {found for found in self.axes[buffer_key(buffer)] if found is not None}

    def spatial(self, block: int) -> list[int]:
        """The dimensions of a block's result, in the order of its loops."""
        return self._some(block, reduces=False)

    def reduced(self, block: int) -> list[int]:
        """The dimensions that a block reduces, in the order of its loops."""
        return self._some(block, reduces=True)

    def _some(self, block: int, reduces: bool) -> list[int]:
        pairs = zip(self.loops[block], self.reduces[block], strict=True)
        return [found for found, kind in pairs if found is not None and kind == reduces]


def dimensions_of(stmts: Sequence[s_tir.SBlock]) -> Dimensions:
    """The dimensions of a kernel whose blocks read every tensor as it lies.

    An axis goes with a loop if the loop runs over all of it, in steps of one from its start.
    """
    joined = _Joined()
    for number, stmt in enumerate(stmts):
        refusal = plain_block_refusal(stmt)
        if refusal is not None:
            raise NotApplicable(refusal)
        for region in (*operands_of(stmt), stmt.writes[0]):
            indices = loop_indices(stmt, region)
            if indices is None:
                raise NotApplicable(
                    f"{region.source.name} is read at other places than loops go over"
                )
            for axis, position in enumerate(indices):
                if position is not None:
                    joined.join(
                        ("loop", number, position), ("axis", buffer_key(region.source), axis)
                    )
    return _numbered(stmts, joined)


def plain_block_refusal(stmt: s_tir.SBlock) -> str | None:
    """Why a block is no single assignment with known extents; None if it is."""
    if scans(stmt):
        return "a loop is neither parallel nor a reduction"
    extents = [static_extent(v.dom.extent) for v in stmt.iter_vars]
    if None in extents:
        return "an extent is not known"
    if 0 in extents:
        return "there is nothing to compute"
    if not isinstance(stmt.body, tirx.BufferStore):
        return "a block does more than to assign one element"
    return None


def volume(stmt: s_tir.SBlock) -> int:
    """How often a block runs."""
    return math.prod(static_extent(v.dom.extent) or 1 for v in stmt.iter_vars)


def loop_indices(stmt: s_tir.SBlock, region: tvm.ir.TensorRegion) -> tuple[int | None, ...] | None:
    """For each axis of a tensor, the iteration variable that goes over it; None for one element.

    None altogether where an index is anything else.
    """
    found = []
    for size, dim in zip(region.source.shape, region.region, strict=True):
        position = None
        if static_extent(size) != 1:
            position = loop_index(stmt, size, dim.min) if static_extent(dim.extent) == 1 else None
            if position is None:
                return None
        found.append(position)
    return tuple(found)


def loop_index(stmt: s_tir.SBlock, size: tvm.ir.Expr, index: tvm.ir.Expr) -> int | None:
    """The iteration variable that goes over an axis of ``size`` elements, at ``index``; or None."""
    if not isinstance(index, tvm.ir.Var):
        analyzer = Analyzer()
        for one in stmt.iter_vars:
            analyzer.bind(one.var, one.dom)
        index = analyzer.simplify(index)
    extent = static_extent(size)
    return next(
        (
            position
            for position, one in enumerate(stmt.iter_vars)
            if one.var.same_as(index) and static_extent(one.dom.extent) == extent
        ),
        None,
    )


class _Joined:
    """Sets of nodes that are joined pair by pair."""

    def __init__(self) -> None:
        self._parents: dict[_Node, _Node] = {}

    def root(self, node: _Node) -> _Node:
        """The node that stands for the set of ``node``."""
        parent = self._parents.setdefault(node, node)
        return node if parent == node else self.root(parent)

    def join(self, node: _Node, other: _Node) -> None:
        """Makes the sets of two nodes one."""
        self._parents[self.root(node)] = self.root(other)


def _numbered(stmts: Sequence[s_tir.SBlock], joined: _Joined) -> Dimensions:
    numbers: dict[_Node, int] = {}
    extents: list[int] = []

    def number(node: _Node, extent: int | None) -> int | None:
        if extent is None or extent == 1:
            return None
        root = joined.root(node)
        if root not in numbers:
            numbers[root] = len(extents)
            extents.append(extent)
        return numbers[root]

    loops = []
    for block, stmt in enumerate(stmts):
        sizes = [static_extent(v.dom.extent) for v in stmt.iter_vars]
        found = tuple(number(("loop", block, i), size) for i, size in enumerate(sizes))
        known = [one for one in found if one is not None]
        if len(set(known)) < len(known):
            raise NotApplicable("a tensor is read along two loops that go over the same axis")
        loops.append(found)
    axes = {}
    for stmt in stmts:
        for region in (*operands_of(stmt), stmt.writes[0]):
            key, shape = buffer_key(region.source), region.source.shape
            axes[key] = tuple(
                number(("axis", key, i), static_extent(size)) for i, size in enumerate(shape)
            )
    reduces = tuple(
        tuple(v.iter_type == tirx.IterVar.CommReduce for v in stmt.iter_vars) for stmt in stmts
    )
    return Dimensions(tuple(loops), reduces, tuple(extents), axes)
