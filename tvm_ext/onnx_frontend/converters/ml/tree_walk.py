"""What the trees of an ensemble say of each row: one kernel that walks them and adds up.

A step reads one record of 16 bytes (32 for float64) that says which column is compared with what,
and where either way leads. Each step waits for the one before, so several walks go side by side: of
several rows in the same tree, which then stays in cache, and where rows are left over of several
trees. A leaf leads to itself, so that walks that have ended wait there for the others.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.errors import FormError
from tvm_ext.hardware.targets import current_cpu
from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of
from tvm_ext.onnx_frontend.converters.loops import emit_loops, in_any_order
from tvm_ext.onnx_frontend.converters.ml.trees import MODES, Forest
from tvm_ext.tir_schedules.llvm.loop_nest import PARALLEL_GAIN

# Walks side by side: enough to fill the time that a step waits for its record, few enough that
# where they are fits the registers.
_LANES = 8

# Of one step in a walk beside others, for the choice of threads.
_STEP_US = 1e-3

_UNROLLED_TARGETS = 4


def tree_scores(
    bb: relax.BlockBuilder, x: relax.Expr, forest: Forest, how: str, base: np.ndarray
) -> relax.Expr:
    """SUM, AVERAGE, MIN or MAX over the trees, ``(rows, targets)``, in the type of ``x``.

    ``base`` is added, as ONNX Runtime does only where it has one number for each target. A target
    that no leaf of a row speaks of is 0 before.

    Raises
    ------
    ValueError
        A node compares a column that ``x`` does not have, or the nodes lead in a circle.
    """
    columns = sizes_of(x)[1]
    used = forest.feature[len(forest.weights) :]
    if used.size and (used.min() < 0 or (isinstance(columns, int) and used.max() >= columns)):
        raise FormError(f"its trees read column {used.max()}, its input has {columns}")
    walk = _Walk.of(forest, how, base, str(x.ty.dtype))
    return _in_one_kernel(bb, x, walk) if current_cpu() else _in_parts(bb, x, walk)


@dataclass(frozen=True)
class _Walk:
    """The tables of a forest as a kernel reads them.

    Attributes
    ----------
    depths : numpy.ndarray
        int32[trees]: the most steps in each tree.
    records : numpy.ndarray
        integers[nodes, 4] of the width of ``dtype``: the column, the bits of the split, the next
        node where the comparison is true, and where it is false.
    flagged : bool
        Whether the lowest two bits of the column say that the comparison is one for equality, and
        that NaN goes the true way.
    leaf : numpy.ndarray
        dtype[leaves, targets], or [leaves, 1] where each leaf is of one target.
    target : numpy.ndarray or None
        int32[leaves]: that target.
    base : numpy.ndarray
        dtype[targets]
    nothing : float
        What aggregation starts with.
    silent : bool
        Whether a row may end with that.
    """

    dtype: str
    how: str
    roots: np.ndarray
    depths: np.ndarray
    records: np.ndarray
    flagged: bool
    leaf: np.ndarray
    target: np.ndarray | None
    base: np.ndarray
    nothing: float
    silent: bool

    @classmethod
    def of(cls, forest: Forest, how: str, base: np.ndarray, dtype: str) -> "_Walk":
        nothing = {"MIN": math.inf, "MAX": -math.inf}.get(how, 0.0)
        leaf = np.where(forest.hit, forest.weights, nothing).astype(dtype)
        targets, target = leaf.shape[1], None
        if targets > 1 and (forest.hit.sum(axis=1) <= 1).all():
            target = forest.hit.argmax(axis=1).astype(np.int32)
            leaf = np.take_along_axis(leaf, target[:, None], axis=1)
        records, flagged = _records(forest, dtype)
        return cls(
            dtype=dtype,
            how=how,
            roots=forest.roots.astype(np.int32),
            depths=forest.depths,
            records=records,
            flagged=flagged,
            leaf=leaf,
            target=target,
            base=base.astype(dtype) if base.size == targets else np.zeros(targets, dtype),
            nothing=nothing,
            silent=nothing != 0 and not bool(forest.hit.all()),
        )

    @property
    def targets(self) -> int:
        return len(self.base)

    def tables(self, *names: str) -> list[relax.Expr]:
        """Some of the arrays as constants."""
        arrays = (getattr(self, name) for name in names)
        return [relax.const(array, str(array.dtype)) for array in arrays]

    def next_node(self, x: Any, records: Any, row: Any, node: Any) -> tirx.Expr:
        """Where a row goes from a node."""
        column = records[node, 0]
        value = x[row, column >> 2 if self.flagged else column]
        split = tirx.reinterpret(self.dtype, records[node, 1])
        takes = value <= split
        if self.flagged:
            takes = tirx.Select((column & 2) != 0, tirx.EQ(value, split), takes)
            takes = tirx.any(takes, tirx.all((column & 1) != 0, tirx.isnan(value)))
        # A choice between two values would become a branch, which is as often taken as not.
        return records[node, 3 - takes.astype("int32")].astype("int32")

    def combined(self, one: Any, other: Any) -> tirx.Expr:
        """Two values of one target."""
        return {"MIN": tirx.min, "MAX": tirx.max}.get(self.how, lambda a, b: a + b)(one, other)

    def finished(self, total: Any, base: Any) -> tirx.Expr:
        """The score of a target from what its leaves add up to."""
        if self.silent:
            nothing = tirx.const(self.nothing, self.dtype)
            total = tirx.Select(tirx.EQ(total, nothing), tirx.const(0, self.dtype), total)
        if self.how == "AVERAGE":
            total = total / tirx.const(len(self.roots), self.dtype)
        return total + base if self.base.any() else total


def _records(forest: Forest, dtype: str) -> tuple[np.ndarray, bool]:
    """The records of the nodes, and whether they have flags.

    All comparisons become ``x <= split`` and ``x == split``: ``x < split`` is the first with the
    number below, and the other three are these with both ways exchanged.
    """
    split = forest.split.astype(dtype)
    mode = np.array(MODES)[forest.mode]
    exchanged = np.isin(mode, ("BRANCH_GTE", "BRANCH_GT", "BRANCH_NEQ"))
    equal = np.isin(mode, ("BRANCH_EQ", "BRANCH_NEQ"))
    below = np.isin(mode, ("BRANCH_LT", "BRANCH_GTE"))
    # Nothing is below the least number, and nothing is above NaN.
    split = np.where(np.isnan(split) & exchanged & ~equal, np.inf, split)
    lower = np.where(np.isneginf(split), np.nan, np.nextafter(split, -np.inf))
    split = np.where(below, lower, split).astype(dtype)
    missing = np.where(exchanged, (forest.missing_true == 0) & ~equal, forest.missing_true != 0)
    inner = np.arange(len(split)) >= len(forest.weights)
    equal, missing = equal & inner, missing & inner
    flagged = bool(equal.any() or missing.any())
    word = np.int32 if dtype == "float32" else np.int64
    column: np.ndarray = forest.feature.astype(word)
    if flagged:
        marks: np.ndarray = np.where(equal, 2, 0) + np.where(missing, 1, 0)
        column = (column * 4 + marks).astype(word)
    ways = [forest.if_true, forest.if_false]
    ways = [np.where(exchanged, other, way) for way, other in zip(ways, ways[::-1], strict=True)]
    return np.stack([column, split.view(word), *ways], axis=1).astype(word), flagged


def _in_one_kernel(bb: relax.BlockBuilder, x: relax.Expr, walk: _Walk) -> relax.Expr:
    rows = sizes_of(x)[0]
    names = ["roots", "records", "leaf", "base"]
    if walk.target is not None:
        names.append("target")

    def body(x: Any, *buffers: Any) -> None:
        loops = _Loops(walk, x, dict(zip(names, buffers, strict=False)), buffers[-1])
        loops.every_row(rows)

    result = ((rows, walk.targets), walk.dtype)
    return emit_loops(bb, "trees", [x, *walk.tables(*names)], [result], body)[0]


@dataclass(frozen=True)
class _Loops:
    """The loops of the kernel for CPUs."""

    walk: _Walk
    x: Any
    table: dict[str, Any]
    written: Any

    def every_row(self, rows: Size) -> None:
        """Blocks of rows side by side, then the rows that are left."""
        if isinstance(rows, int) and rows < _LANES:
            with T.serial(0, rows) as row:
                self.one_row(row)
            return
        count = self.x.shape[0]
        blocks = count // _LANES
        with (T.parallel if self._worth_threads(rows) else T.serial)(0, blocks) as block:
            self.block_of_rows(block * _LANES)
        with T.serial(0, count - blocks * _LANES) as left:
            self.one_row(blocks * _LANES + left)

    def _worth_threads(self, rows: Size) -> bool:
        """Of an open number of rows a run decides (``ThreadsForLargeRuns``)."""
        cpu = current_cpu()
        if cpu is None or cpu.cores < 2:
            return False
        steps = rows * float(self.walk.depths.sum()) if isinstance(rows, int) else math.inf
        return steps * _STEP_US > PARALLEL_GAIN * cpu.parallel_overhead_us

    def block_of_rows(self, first: Any) -> None:
        """As many rows as go side by side, tree after tree."""
        rows = [first + lane for lane in range(_LANES)]
        self._start(rows)
        with T.serial(0, len(self.walk.roots)) as tree:
            self._walked(rows, [tree] * _LANES)
        self._finish(rows)

    def one_row(self, row: Any) -> None:
        """As many trees as go side by side at a time."""
        groups, left = divmod(len(self.walk.roots), _LANES)
        self._start([row])
        with T.serial(0, groups) as group:
            trees = [group * _LANES + lane for lane in range(_LANES)]
            self._walked([row] * _LANES, trees)
        if left:
            trees = [groups * _LANES + lane for lane in range(left)]
            self._walked([row] * left, trees)
        self._finish([row])

    def _walked(self, rows: Sequence[Any], trees: Sequence[Any]) -> None:
        """Walks in several trees, and adds what their leaves say."""
        here = T.buffer_proxy(T.alloc_buffer((len(rows),), "int32", scope="local"))
        for lane, tree in enumerate(trees):
            here[lane] = self.table["roots"][tree]
        last = functools.reduce(tirx.max, [here[lane] for lane in range(len(rows))])
        with T.While(last >= len(self.walk.leaf)):
            for lane, row in enumerate(rows):
                here[lane] = self.walk.next_node(self.x, self.table["records"], row, here[lane])
        for lane, row in enumerate(rows):
            self._add(row, here[lane])

    def _add(self, row: Any, leaf: Any) -> None:
        if self.walk.target is not None:
            self._combine(row, self.table["target"][leaf], self.table["leaf"][leaf, 0])
            return
        self._each_target(lambda t: self._combine(row, t, self.table["leaf"][leaf, t]))

    def _combine(self, row: Any, target: Any, value: Any) -> None:
        self.written[row, target] = self.walk.combined(self.written[row, target], value)

    def _start(self, rows: Sequence[Any]) -> None:
        for row in rows:
            self._each_target(functools.partial(self._set, self.walk.nothing, row))

    def _set(self, value: float, row: Any, target: Any) -> None:
        self.written[row, target] = tirx.const(value, self.walk.dtype)

    def _finish(self, rows: Sequence[Any]) -> None:
        walk, written, base = self.walk, self.written, self.table["base"]
        if not (walk.silent or walk.how == "AVERAGE" or walk.base.any()):
            return

        def finish(row: Any, t: Any) -> None:
            written[row, t] = walk.finished(written[row, t], base[t])

        for row in rows:
            self._each_target(functools.partial(finish, row))

    def _each_target(self, body: Callable[[Any], None]) -> None:
        if self.walk.targets <= _UNROLLED_TARGETS:
            for target in range(self.walk.targets):
                body(target)
            return
        with T.serial(0, self.walk.targets) as target:
            body(target)


def _in_parts(bb: relax.BlockBuilder, x: relax.Expr, walk: _Walk) -> relax.Expr:
    """A thread for each row and tree finds a leaf; a reduction over the trees follows."""
    rows, trees = sizes_of(x)[0], len(walk.roots)

    def find(x: Any, roots: Any, depths: Any, records: Any, leaf: Any) -> None:
        with in_any_order(x.shape[0], trees) as (row, tree):
            here = T.buffer_proxy(T.alloc_buffer((1,), "int32", scope="local"))
            here[0] = roots[tree]
            with T.serial(0, depths[tree]):
                here[0] = walk.next_node(x, records, row, here[0])
            leaf[row, tree] = here[0]

    inputs = [x, *walk.tables("roots", "depths", "records")]
    leaves = emit_loops(bb, "leaves_of_trees", inputs, [((rows, trees), "int32")], find)[0]

    def total(leaves: te.Tensor, leaf: te.Tensor, target: te.Tensor | None = None) -> te.Tensor:
        tree = te.reduce_axis((0, trees), name="tree")
        reduce = {"MIN": te.min, "MAX": te.max}.get(walk.how, te.sum)

        def said(row: Any, t: Any) -> tirx.Expr:
            found = leaves[row, tree]
            if target is None:
                return leaf[found, t]
            return tirx.Select(
                target[found] == t, leaf[found, 0], tirx.const(walk.nothing, walk.dtype)
            )

        return te.compute(
            (leaves.shape[0], walk.targets),
            lambda row, t: reduce(said(row, t), axis=tree),
            name="aggregated",
        )

    names = ("leaf",) if walk.target is None else ("leaf", "target")
    summed = bb.emit_te(total, leaves, *walk.tables(*names))

    def finish(total: te.Tensor, base: te.Tensor) -> te.Tensor:
        return te.compute(
            total.shape, lambda row, t: walk.finished(total[row, t], base[t]), name="scores"
        )

    return bb.emit_te(finish, summed, *walk.tables("base"))
