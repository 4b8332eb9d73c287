"""Reads a scheduled kernel as the program of one PE."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import s_tir, tirx

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW
from tvm_ext.tuning.mesh_analysis.affine import Affine
from tvm_ext.tuning.mesh_analysis.homes import stated_homes
from tvm_ext.tuning.mesh_analysis.loops import Loop as KernelLoop
from tvm_ext.tuning.mesh_analysis.loops import Place, loop_of
from tvm_ext.tuning.mesh_analysis.transfers import pattern_of
from tvm_ext.wafer.csl.errors import NotCovered
from tvm_ext.wafer.csl.kernel import (
    COLUMN_NUMBER,
    ROW_NUMBER,
    Assignment,
    Item,
    Loop,
    MeshKernel,
    Repeat,
    Steps,
)
from tvm_ext.wafer.csl.messages import Messages, check_pattern
from tvm_ext.wafer.csl.sums import sum_of
from tvm_ext.wafer.csl.tails import check_limits
from tvm_ext.wafer.csl.tiles import tiles_of
from tvm_ext.wafer.csl.values import Load, Tensor, value_of

_LINES = {ROW: ROW_NUMBER, COLUMN: COLUMN_NUMBER}


def read_kernel(func: tirx.PrimFunc, name: str = "main") -> MeshKernel:
    """The program of one PE that the loops and annotations of ``func`` describe.

    What is read: loops over the rows and columns of the mesh, below them assignments of float32 or
    float16 elements whose indices are sums over the loops, and loops of steps. Tiles come by
    multicast along rows and columns, in each step (SUMMA) or before the work. Parts of a tile that
    lie beyond the end of a tensor are computed as well: tensors are padded with zeros to whole
    tiles.

    Raises
    ------
    NotCovered, NotReadable
        The kernel does something else; the text says what.
    """
    return _Reader(func, name).kernel()


class _Reader:
    """Walks through the statements once."""

    def __init__(self, func: tirx.PrimFunc, name: str) -> None:
        if not isinstance(func.body, s_tir.SBlockRealize):
            raise NotCovered("it has no blocks: its loops are written by hand")
        self._func = func
        self._name = name
        self._root = func.body.block
        self._counts: dict[str, set[int]] = {ROW: set(), COLUMN: set()}
        self._loops = 0
        # What the loops' variables are, by hash. A loop of one iteration is a 0.
        self._known: dict[int, Affine | None] = {}
        self._tensors: dict[Any, Tensor] = {}

    def kernel(self) -> MeshKernel:
        """What was found."""
        parameters = [self._tensor(param, True) for param in self._func.params]
        items = self._items(self._root.body, [])
        if not any(self._counts.values()):
            raise NotCovered("no loop is annotated as a row or column of the mesh")
        rows, columns = (max(self._counts[axis], default=1) for axis in (ROW, COLUMN))
        stated = stated_homes(self._root, self._func, rows, columns)
        homes = {self._tensors[buffer]: home for buffer, home in stated.items()}
        messages = Messages({ROW: columns, COLUMN: rows}, homes, self._loops)
        finished = tuple(found for item in items for found in messages.of(item))
        tiles = tiles_of(finished, parameters, (rows, columns), messages.homes)
        check_limits(finished, tiles)
        return MeshKernel(self._name, rows, columns, finished, tiles)

    def _tensor(self, buffer: Any, is_parameter: bool = False) -> Tensor:
        if buffer not in self._tensors:
            shape = tuple(static_extent(size) for size in buffer.shape)
            if None in shape:
                raise NotCovered(f"the size of {buffer.name} is known only at run time")
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
        raise NotCovered(f"a {type(stmt).__name__} stands between the loops")

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
        own, inner = Loop(loop.number, loop.extent), _plain(items)
        if loop.pipeline:
            return (Steps(own, loop.pipeline > 1, (), inner),)
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
            raise NotCovered(f"its {loop.axis}s of PEs are in groups")
        if len(counts - {1}) > 1:
            raise NotCovered(f"parts of it use different numbers of {loop.axis}s of PEs")

    def _assignment(self, realize: Any, loops: Sequence[KernelLoop]) -> Assignment:
        block, store = realize.block, realize.block.body
        name = str(block.name_hint)
        if block.init is not None or not isinstance(store, tirx.BufferStore):
            raise NotCovered(f"block {name} does more than to assign one element")
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
            raise NotCovered(f"the condition {condition} is not the end of a tensor")
        return sum_of(condition.a, self._known), end


def _plain(items: tuple[Item, ...]) -> tuple[Assignment | Repeat, ...]:
    if any(isinstance(item, Steps) for item in items):
        raise NotCovered("its steps are inside of a loop")
    return tuple(item for item in items if not isinstance(item, Steps))
