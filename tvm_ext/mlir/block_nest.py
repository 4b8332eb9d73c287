"""A statement of a kernel as a perfect nest: what linalg.generic can say, read from TensorIR."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm_ffi import structural_equal

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent


@dataclass(frozen=True)
class BlockNest:
    """A block in loops of its own, which runs once for each point of a box.

    Attributes
    ----------
    name : str
        The block's name.
    variables : tuple[tirx.Var, ...]
        Its iteration variables; each goes from 0.
    extents : tuple[tvm.ir.Expr, ...]
        How far each goes.
    reduces : tuple[bool, ...]
        Whether it reduces.
    body : tuple[tirx.Stmt, ...]
        Bindings of names and stores, in order.
    init : tuple[tirx.BufferStore, ...]
        What is stored before the first step of the reduction; empty where there is none.
    """

    name: str
    variables: tuple[Any, ...]
    extents: tuple[Any, ...]
    reduces: tuple[bool, ...]
    body: tuple[Any, ...]
    init: tuple[Any, ...]

    @property
    def stores(self) -> list[Any]:
        """The stores of the body."""
        return [stmt for stmt in self.body if isinstance(stmt, tirx.BufferStore)]


def block_nest(stmt: Any) -> BlockNest:
    """Reads a statement; raises NotApplicable where it is no block in a perfect nest."""
    loops, inner = _loops_of(stmt)
    if not isinstance(inner, s_tir.SBlockRealize):
        raise NotApplicable("its loops hold something else than one block")
    block = inner.block
    if block.alloc_buffers or block.match_buffers:
        raise NotApplicable(f"block {block.name_hint} has arrays of its own")
    if static_extent(inner.predicate) != 1:
        raise NotApplicable(f"block {block.name_hint} runs for a part of its loops only")
    _check_loops(loops, inner)
    kinds = [axis.iter_type for axis in block.iter_vars]
    if any(kind not in _KINDS for kind in kinds):
        raise NotApplicable(f"block {block.name_hint} runs in a given order")
    init = () if block.init is None else _flat(block.init)
    return BlockNest(
        str(block.name_hint),
        tuple(axis.var for axis in block.iter_vars),
        tuple(axis.dom.extent for axis in block.iter_vars),
        tuple(kind == tirx.IterVar.CommReduce for kind in kinds),
        _flat(block.body),
        init,
    )


_KINDS = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)


def _loops_of(stmt: Any) -> tuple[list[Any], Any]:
    loops = []
    while isinstance(stmt, tirx.For):
        if tirx.ForKind(stmt.kind) != tirx.ForKind.SERIAL or static_extent(stmt.min) != 0:
            raise NotApplicable("its loops are scheduled")
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def _check_loops(loops: Sequence[Any], realize: Any) -> None:
    """Each iteration variable has to be a loop of the same extent, and each loop to be one."""
    by_variable = {hash(loop.loop_var): loop for loop in loops}
    for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        if static_extent(axis.dom.min) != 0:
            raise NotApplicable("an iteration variable does not begin at 0")
        if static_extent(axis.dom.extent) == 1 and static_extent(value) == 0:
            continue
        loop = by_variable.pop(hash(value), None) if isinstance(value, tvm.ir.Var) else None
        if loop is None or not _equal(loop.extent, axis.dom.extent):
            raise NotApplicable("its iteration variables are not its loops")
    if any(static_extent(loop.extent) != 1 for loop in by_variable.values()):
        raise NotApplicable("a loop of it is no iteration variable")


def _equal(one: Any, other: Any) -> bool:
    sizes = static_extent(one), static_extent(other)
    if None not in sizes:
        return sizes[0] == sizes[1]
    return bool(structural_equal(one, other))


def _flat(stmt: Any) -> tuple[Any, ...]:
    """Bindings and stores of a body; raises NotApplicable for another statement."""
    if isinstance(stmt, tirx.SeqStmt):
        return tuple(part for each in stmt.seq for part in _flat(each))
    if isinstance(stmt, tirx.BufferStore | tirx.Bind):
        return (stmt,)
    raise NotApplicable(f"its block holds a {type(stmt).__name__}")
