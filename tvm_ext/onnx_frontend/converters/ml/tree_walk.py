"""What the trees of an ensemble say of each row: one kernel that walks them and adds up.

Each step of a walk waits for the one before, so several walks go side by side: of several rows in
the same tree, which then stays in cache, and where rows are left over of several trees. A leaf
leads to itself, so that walks that have ended wait there for the others; which way a node takes is
added to a number, so that no branch has to be foreseen (``trees.py``).
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
from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of
from tvm_ext.onnx_frontend.converters.loops import emit_loops, in_any_order, local_array
from tvm_ext.onnx_frontend.converters.ml.scores_and_labels import chosen, one_of_two
from tvm_ext.onnx_frontend.converters.ml.trees import (
    IS_INNER,
    Forest,
    NodeRecords,
    node_records,
)
from tvm_ext.tir_schedules.cpu.parallel_vectorize import PARALLEL_GAIN

# Walks side by side: enough to fill the time that a step waits for its record, few enough that
# where they are fits the registers.
_LANES = 8

# Of one step in a walk beside others, for the choice of threads.
_STEP_US = 1e-3

_UNROLLED_TARGETS = 4


@dataclass(frozen=True)
class Verdict:
    """Which label a row gets.

    Attributes
    ----------
    labels : numpy.ndarray
        int64: one for each target, that of the largest score is taken; or two, the second where
        the only score is above ``threshold``.
    threshold : float or None
    opposite : float
        Of one score two are made: ``opposite - score`` and the score.
    """

    labels: np.ndarray
    threshold: float | None = None
    opposite: float = 0.0

    @property
    def scores(self) -> int:
        """How many scores a row has."""
        return len(self.labels)

    def of_scores(self, bb: relax.BlockBuilder, scores: relax.Expr) -> list[relax.Expr]:
        """Labels and scores from those of the targets, as operators."""
        if self.threshold is None:
            return [chosen(bb, scores, self.labels), scores]
        label = one_of_two(bb, scores, self.threshold, *(int(one) for one in self.labels))
        other = bb.emit(relax.op.negative(scores))
        if self.opposite:
            dtype = str(scores.ty.dtype)
            shift = relax.const(np.asarray(self.opposite, dtype), dtype)
            other = bb.emit(relax.op.add(other, shift))
        return [label, bb.emit(relax.op.concat([other, scores], axis=1))]


def tree_scores(
    bb: relax.BlockBuilder, x: relax.Expr, forest: Forest, how: str, base: np.ndarray
) -> relax.Expr:
    """SUM, AVERAGE, MIN or MAX over the trees, ``(rows, targets)``, in the type of ``x``.

    ``base`` is added, as ONNX Runtime does only where it has one number for each target. A target
    that no leaf of a row speaks of is 0, without it.

    Raises
    ------
    FormError
        A node compares a column that ``x`` does not have, or the nodes lead in a circle.
    """
    walk = _walk(x, forest, how, base)
    return _in_one_kernel(bb, x, walk, None)[0] if current_cpu() else _in_parts(bb, x, walk)


def tree_labels(
    bb: relax.BlockBuilder, x: relax.Expr, forest: Forest, base: np.ndarray, verdict: Verdict
) -> list[relax.Expr]:
    """The labels, ``(rows,)``, and the scores that the trees add up to, ``(rows, classes)``.

    Raises
    ------
    FormError
        As for ``tree_scores``.
    """
    walk = _walk(x, forest, "SUM", base)
    if current_cpu():
        return _in_one_kernel(bb, x, walk, verdict)
    return verdict.of_scores(bb, _in_parts(bb, x, walk))


def _walk(x: relax.Expr, forest: Forest, how: str, base: np.ndarray) -> "_TreeWalk":
    columns = sizes_of(x)[1]
    used = forest.feature[len(forest.weights) :]
    if used.size and (used.min() < 0 or (isinstance(columns, int) and used.max() >= columns)):
        raise FormError(f"its trees read column {used.max()}, and its input has {columns} columns")
    return _TreeWalk.of(forest, how, base, str(x.ty.dtype))


@dataclass(frozen=True)
class _TreeWalk:
    """The tables of a forest as a kernel reads them.

    Attributes
    ----------
    depths : numpy.ndarray
        int32[trees]: the most steps in each tree.
    nodes : NodeRecords
        What a leaf says there is its one value, or its number.
    owner : numpy.ndarray or None
        int32[trees]: the target of all leaves of a tree; their values are in the records then.
    leaf : numpy.ndarray
        dtype[leaves, targets], or [leaves, 1] where each leaf is of one target.
    target : numpy.ndarray or None
        int32[leaves]: that target.
    base : numpy.ndarray
        dtype[targets]
    nothing : float
        What aggregation starts with.
    silent : bool
        Whether a row may end with that; ONNX Runtime then leaves out the base value as well.
    """

    dtype: str
    how: str
    depths: np.ndarray
    nodes: NodeRecords
    owner: np.ndarray | None
    leaf: np.ndarray
    target: np.ndarray | None
    base: np.ndarray
    nothing: float
    silent: bool

    @classmethod
    def of(cls, forest: Forest, how: str, base: np.ndarray, dtype: str) -> "_TreeWalk":
        depths, targets = forest.depths, forest.weights.shape[1]
        base = base.astype(dtype) if base.size == targets else np.zeros(targets, dtype)
        numbers = np.arange(len(forest.weights), dtype=np.int32)
        nodes = node_records(forest, numbers, dtype)
        speaks = _always_spoken_of(forest, nodes)
        empty = {"MIN": math.inf, "MAX": -math.inf}.get(how, 0.0)
        silent = not speaks.all() and (empty != 0 or bool(base[~speaks].any()))
        # No sum of other numbers is the negative zero, and adding it changes none.
        nothing = empty if empty or not silent else -0.0
        leaf = np.where(forest.hit, forest.weights + 0.0, nothing).astype(dtype)
        target, owner = None, _owners(forest, nodes)
        if targets > 1 and (forest.hit.sum(axis=1) <= 1).all():
            target = forest.hit.argmax(axis=1).astype(np.int32)
            leaf = np.take_along_axis(leaf, target[:, None], axis=1)
        if owner is not None:
            nodes = node_records(forest, leaf[:, 0], dtype)
        return cls(dtype, how, depths, nodes, owner, leaf, target, base, nothing, silent)

    @property
    def targets(self) -> int:
        return len(self.base)

    @property
    def trees(self) -> int:
        return len(self.depths)

    def tables(self, *names: str) -> list[relax.Expr]:
        """Some of the arrays as constants."""
        arrays = (self.nodes.words if name == "records" else getattr(self, name) for name in names)
        return [relax.const(array, str(array.dtype)) for array in arrays]

    def next_node(self, x: Any, row: tirx.Expr, split: Any, link: Any) -> tirx.Expr:
        """Where a row goes from a node, of which both words are given."""
        nodes = self.nodes
        column = ((link >> nodes.column_shift) & nodes.column_mask).astype("int64")
        value, split = x[row, column], self._alone(self.number(split))
        true = (self._alone(value) <= split).astype(nodes.word)
        if nodes.has_outcomes:
            # The position of a bit of the link.
            reaches = (self._alone(value) >= split).astype(nodes.word)
            true = self._bit(link, true + (reaches << 1) + 1)
        # A choice or a mask would become a branch, which is as often taken as not.
        step = (link & IS_INNER) << true
        return (link >> nodes.child_shift).astype("int64") + step.astype("int64")

    def number(self, word: Any) -> tirx.Expr:
        """The number of type ``dtype`` in a word."""
        if self.dtype == "float32":
            word = word.astype("uint32")
        return tirx.reinterpret(self.dtype, word)

    def _bit(self, link: Any, place: tirx.Expr) -> tirx.Expr:
        """One bit of a link; by an instruction that LLVM cannot make vectors of, see ``_alone``."""
        cpu, word = current_cpu(), self.nodes.word
        if cpu is None or "bmi" not in cpu.required_features:
            return (link >> place) & 1
        name = f"llvm.x86.bmi.bextr.{word.removeprefix('uint')}"
        return tirx.call_llvm_pure_intrin(word, name, link, place + tirx.const(1 << 8, word))

    def _alone(self, value: Any) -> Any:
        """Keeps LLVM from computing steps side by side in vectors, whose gathers take longer."""
        if current_cpu() is None:
            return value
        return tirx.call_llvm_pure_intrin(self.dtype, "llvm.arithmetic.fence", value)

    def combined(self, first: Any, other: Any) -> tirx.Expr:
        """Two values of one target."""
        return {"MIN": tirx.min, "MAX": tirx.max}.get(self.how, lambda a, b: a + b)(first, other)

    def finished(self, total: Any, base: Any) -> tirx.Expr:
        """The score of a target from what its leaves add up to."""
        score = total
        if self.how == "AVERAGE":
            score = score / tirx.const(self.trees, self.dtype)
        if self.base.any():
            score = score + base
        if not self.silent:
            return score
        bits = f"int{8 * np.dtype(self.dtype).itemsize}"
        nothing = np.array(self.nothing, self.dtype).view(bits).item()
        is_nothing = tirx.EQ(tirx.reinterpret(bits, total), tirx.const(nothing, bits))
        return tirx.Select(is_nothing, tirx.const(0, self.dtype), score)


def _always_spoken_of(forest: Forest, nodes: NodeRecords) -> np.ndarray:
    """bool[targets]: whether some tree speaks of the target wherever a row ends in it."""
    if forest.hit.all():
        return np.ones(forest.hit.shape[1], bool)
    leaves = (nodes.tree >= 0) & (nodes.node < len(forest.hit))
    said = np.ones((len(forest.roots), forest.hit.shape[1]), bool)
    np.logical_and.at(said, nodes.tree[leaves], forest.hit[nodes.node[leaves]])
    return np.asarray(said.any(axis=0))


def _owners(forest: Forest, nodes: NodeRecords) -> np.ndarray | None:
    """int32[trees]: the target that a tree speaks of; None where one speaks of several."""
    trees, (_, targets) = len(forest.roots), forest.hit.shape
    if targets == 1:
        return np.zeros(trees, np.int32)
    if nodes.shared:
        return None
    leaves = (nodes.tree >= 0) & (nodes.node < len(forest.hit))
    spoken_of = np.zeros((trees, targets), bool)
    np.logical_or.at(spoken_of, nodes.tree[leaves], forest.hit[nodes.node[leaves]])
    owner: np.ndarray = spoken_of.argmax(axis=1).astype(np.int32)
    return owner if (spoken_of.sum(axis=1) <= 1).all() else None


def _in_one_kernel(
    bb: relax.BlockBuilder, x: relax.Expr, walk: _TreeWalk, verdict: Verdict | None
) -> list[relax.Expr]:
    """The scores; with a verdict the labels before them."""
    rows = sizes_of(x)[0]
    names = ["records", *_table_names(walk), "base"]
    inputs = walk.tables(*names)
    results: list[tuple[tuple[Any, ...], str]] = [((rows, walk.targets), walk.dtype)]
    if verdict is not None:
        names.append("labels")
        inputs.append(relax.const(verdict.labels, "int64"))
        results = [((rows,), "int64"), ((rows, verdict.scores), walk.dtype)]

    def body(x: Any, *buffers: Any) -> None:
        tables, written = buffers[: len(names)], buffers[len(names) :]
        table = dict(zip(names, tables, strict=True))
        _Loops(walk, x, table, written[-1], verdict, written[0]).every_row(rows)

    return emit_loops(bb, "trees", [x, *inputs], results, body)


def _table_names(walk: _TreeWalk) -> list[str]:
    """The tables that say what a leaf says."""
    if walk.owner is not None:
        return ["owner"] if walk.targets > 1 else []
    return ["leaf"] if walk.target is None else ["leaf", "target"]


@dataclass(frozen=True)
class _Loops:
    """The loops of the kernel for CPUs."""

    walk: _TreeWalk
    x: Any
    table: dict[str, Any]
    written: Any
    verdict: Verdict | None
    labels: Any

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
        """Of a symbolic number of rows a run decides (``ThreadsForLargeRuns``)."""
        cpu = current_cpu()
        if cpu is None or cpu.cores < 2:
            return False
        steps = rows * float(self.walk.depths.sum()) if isinstance(rows, int) else math.inf
        return steps * _STEP_US > PARALLEL_GAIN * cpu.parallel_overhead_us

    def block_of_rows(self, first: tirx.Expr) -> None:
        """As many rows as go side by side, tree after tree."""
        rows = [first + lane for lane in range(_LANES)]
        totals = self._started(_LANES)
        with T.serial(0, self.walk.trees) as tree:
            self._walked(totals, rows, [tree] * _LANES)
        self._finish(totals, rows)

    def one_row(self, row: tirx.Expr) -> None:
        """As many trees as go side by side at a time."""
        groups, left = divmod(self.walk.trees, _LANES)
        totals = self._started(1)
        with T.serial(0, groups) as group:
            trees = [group * _LANES + lane for lane in range(_LANES)]
            self._walked(totals, [row], trees)
        if left:
            self._walked(
                totals, [row], [tirx.const(groups * _LANES + lane, "int32") for lane in range(left)]
            )
        self._finish(totals, [row])

    def _walked(self, totals: Any, rows: Sequence[tirx.Expr], trees: Sequence[tirx.Expr]) -> None:
        """Walks in several trees, and adds what their leaves say."""
        records, word = self.table["records"], self.walk.nodes.word
        places = [place % len(rows) for place in range(len(trees))]
        here, link = local_array(len(trees), "int64"), local_array(len(trees), word)
        for lane, tree in enumerate(trees):
            here[lane] = tree.astype("int64")
            link[lane] = records[tree, 1]
        links = [link[lane] for lane in range(len(trees))]
        with T.While((functools.reduce(lambda item, other: item | other, links) & IS_INNER) != 0):
            for lane, place in enumerate(places):
                split = records[here[lane], 0]
                here[lane] = self.walk.next_node(self.x, rows[place], split, link[lane])
                link[lane] = records[here[lane], 1]
        for lane, (tree, place) in enumerate(zip(trees, places, strict=True)):
            self._add(totals, place, tree, records[here[lane], 0])

    def _add(self, totals: Any, place: int, tree: tirx.Expr, said: Any) -> None:
        walk, table = self.walk, self.table

        def combine(target: tirx.Expr | int, value: Any) -> None:
            at = place * walk.targets + target
            totals[at] = walk.combined(totals[at], value)

        if walk.owner is not None:
            combine(table["owner"][tree] if walk.targets > 1 else 0, walk.number(said))
        elif walk.target is not None:
            combine(table["target"][said], table["leaf"][said, 0])
        else:
            self._each_target(lambda target: combine(target, table["leaf"][said, target]))

    def _started(self, rows: int) -> Any:
        """Totals of several rows, one after the other."""
        count = rows * self.walk.targets
        totals = local_array(count, self.walk.dtype)
        nothing = tirx.const(self.walk.nothing, self.walk.dtype)
        if count <= _LANES * _UNROLLED_TARGETS:
            for place in range(count):
                totals[place] = nothing
        else:
            with T.serial(0, count) as place:
                totals[place] = nothing
        return totals

    def _finish(self, totals: Any, rows: Sequence[tirx.Expr]) -> None:
        for place, row in enumerate(rows):
            first = place * self.walk.targets
            if self.verdict is not None and self.verdict.threshold is not None:
                self._write_two(totals[first], row, self.verdict, self.verdict.threshold)
                continue
            self._each_target(functools.partial(self._write, totals, first, row))
            if self.verdict is not None:
                self._write_label(row)

    def _write(self, totals: Any, first: int, row: tirx.Expr, t: tirx.Expr) -> None:
        self.written[row, t] = self.walk.finished(totals[first + t], self.table["base"][t])

    def _write_two(self, total: Any, row: tirx.Expr, verdict: Verdict, threshold: float) -> None:
        score = self.walk.finished(total, self.table["base"][0])
        opposite, limit = (tirx.const(v, self.walk.dtype) for v in (verdict.opposite, threshold))
        self.written[row, 0] = opposite - score
        self.written[row, 1] = score
        self.labels[row] = self.table["labels"][(score > limit).astype("int64")]

    def _write_label(self, row: tirx.Expr) -> None:
        """The first of the largest scores decides."""
        best = local_array(1, "int64")
        best[0] = tirx.const(0, "int64")

        def compare(t: tirx.Expr) -> None:
            better = self.written[row, t] > self.written[row, best[0]]
            best[0] = tirx.Select(better, tirx.Cast("int64", t), best[0])

        self._each_target(compare)
        self.labels[row] = self.table["labels"][best[0]]

    def _each_target(self, body: Callable[[Any], None]) -> None:
        if self.walk.targets <= _UNROLLED_TARGETS:
            for target in range(self.walk.targets):
                body(tirx.const(target, "int32"))
            return
        with T.serial(0, self.walk.targets) as target:
            body(target)


def _in_parts(bb: relax.BlockBuilder, x: relax.Expr, walk: _TreeWalk) -> relax.Expr:
    """A thread for each row and tree finds a leaf; a reduction over the trees follows."""
    rows, trees = sizes_of(x)[0], walk.trees
    found_type = "int32" if walk.owner is None else walk.dtype

    def find(x: Any, depths: Any, records: Any, found: Any) -> None:
        with in_any_order(x.shape[0], trees) as (row, tree):
            here = local_array(1, "int64")
            here[0] = tree.astype("int64")
            with T.serial(0, depths[tree]):
                split, link = (records[here[0], word] for word in (0, 1))
                here[0] = walk.next_node(x, row, split, link)
            said = records[here[0], 0]
            found[row, tree] = said.astype("int32") if walk.owner is None else walk.number(said)

    inputs = [x, *walk.tables("depths", "records")]
    found = emit_loops(bb, "leaves_of_trees", inputs, [((rows, trees), found_type)], find)[0]
    names = _table_names(walk)

    def total(found: te.Tensor, *tables: te.Tensor) -> te.Tensor:
        table = dict(zip(names, tables, strict=True))
        tree = te.reduce_axis((0, trees), name="tree")
        reduce = {"MIN": te.min, "MAX": te.max}.get(walk.how, te.sum)

        def said(row: Any, t: Any) -> tirx.Expr:
            leaf = found[row, tree]
            if walk.owner is not None:
                value, target = leaf, table["owner"][tree] if "owner" in table else None
            elif walk.target is None:
                return table["leaf"][leaf, t]
            else:
                value, target = table["leaf"][leaf, 0], table["target"][leaf]
            if target is None:
                return value
            return tirx.Select(target == t, value, tirx.const(walk.nothing, walk.dtype))

        return te.compute(
            (found.shape[0], walk.targets),
            lambda row, t: reduce(said(row, t), axis=tree),
            name="aggregated",
        )

    summed = bb.emit_te(total, found, *walk.tables(*names))

    def finish(total: te.Tensor, base: te.Tensor) -> te.Tensor:
        return te.compute(
            total.shape, lambda row, t: walk.finished(total[row, t], base[t]), name="scores"
        )

    return bb.emit_te(finish, summed, *walk.tables("base"))
