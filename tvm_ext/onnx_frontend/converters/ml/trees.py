"""Tree ensembles: one kernel that walks every tree for every row, and a sum over the leaves.

The nodes are tables: what to compare with what, and where to go from there. A leaf leads to
itself, so that every walk has as many steps as the deepest tree has levels, without a branch on
where it ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of
from tvm_ext.onnx_frontend.converters.loops import emit_loops

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
MEMBER = len(MODES)


@dataclass(frozen=True)
class Forest:
    """Trees as tables; node ``i`` is a leaf when ``i < len(weights)``.

    Attributes
    ----------
    roots : numpy.ndarray
        int32[trees]
    feature, mode, missing_true, if_true, if_false : numpy.ndarray
        int32[nodes]: the column that is compared, how (index into ``MODES``), whether NaN goes the
        way of a true comparison as well, and the next node.
    split : numpy.ndarray
        float[nodes]: what the column is compared with.
    weights : numpy.ndarray
        float[leaves, targets]: what a leaf adds.
    hit : numpy.ndarray
        bool[leaves, targets]: whether a leaf says something about the target.
    """

    roots: np.ndarray
    feature: np.ndarray
    mode: np.ndarray
    missing_true: np.ndarray
    if_true: np.ndarray
    if_false: np.ndarray
    split: np.ndarray
    weights: np.ndarray
    hit: np.ndarray

    @property
    def depth(self) -> int:
        """Steps from the roots to the deepest leaf; raises FormError for a circle of nodes."""
        leaves = len(self.weights)
        level, depth = np.unique(self.roots), 0
        while (inner := level[level >= leaves]).size:
            depth += 1
            if depth > len(self.feature):
                raise FormError("its nodes lead in a circle; expected trees")
            level = np.unique(np.concatenate([self.if_true[inner], self.if_false[inner]]))
        return depth


def from_nodes(tables: dict[str, Sequence[Any]], leaves: np.ndarray, **values: Any) -> Forest:
    """A forest of nodes in any order, in which ``leaves`` (bool[nodes]) move to the front.

    Raises
    ------
    FormError
        A table has another length, or a node leads to one that does not exist.
    """
    short = sorted(name for name, table in tables.items() if len(table) != len(leaves))
    if short or not len(leaves):
        raise FormError(f"its tables {', '.join(short)} do not fit its {len(leaves)} nodes")
    followed = [np.asarray(tables[name])[~leaves] for name in ("if_true", "if_false")]
    for places in (*followed, values["roots"]):
        if places.size and not (places.min() >= 0 and places.max() < len(leaves)):
            raise FormError(f"its trees lead outside of their {len(leaves)} nodes")
    order = np.argsort(~leaves, kind="stable")
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    rows = {name: np.asarray(table)[order] for name, table in tables.items()}
    count = int(leaves.sum())
    for name in ("if_true", "if_false"):
        following = np.arange(len(order), dtype=np.int32)
        following[count:] = place[rows[name][count:]]
        rows[name] = following
    rows["feature"][:count] = 0
    return Forest(roots=place[values.pop("roots")], **rows, **values)


def leaves_of(bb: relax.BlockBuilder, x: relax.Expr, forest: Forest) -> relax.Expr:
    """The leaf that each row of ``x`` (``(rows, columns)``) reaches in each tree, int32.

    Raises
    ------
    FormError
        A node compares a column that ``x`` does not have, or the nodes lead in a circle.
    """
    rows, columns = sizes_of(x)
    inner = slice(len(forest.weights), None)
    used = forest.feature[inner]
    if used.size and (used.min() < 0 or (isinstance(columns, int) and used.max() >= columns)):
        raise FormError(f"its trees read column {used.max()}, its input has {columns}")
    depth, count = forest.depth, len(forest.roots)
    modes = sorted(set(forest.mode[inner].tolist()))
    dtype = str(x.ty.dtype)
    tables = {
        f.name: _stored(getattr(forest, f.name), dtype)
        for f in fields(forest)
        if f.name not in ("weights", "hit")
    }
    names = list(tables)
    wholes = bool(forest.missing_true[inner].any())

    def body(x: Any, *buffers: Any) -> None:
        table, leaf = dict(zip(names, buffers, strict=False)), buffers[-1]
        with T.grid(rows, count) as (row, tree):
            here = T.buffer_proxy(T.alloc_buffer((1,), "int32", scope="local"))
            here[0] = table["roots"][tree]
            with T.serial(0, depth):
                node = here[0]
                value = x[row, table["feature"][node]]
                takes = _compared(value, table["split"][node], table["mode"][node], modes)
                if wholes:
                    missing = tirx.all(tirx.isnan(value), table["missing_true"][node] != 0)
                    takes = tirx.any(takes, missing)
                here[0] = tirx.Select(takes, table["if_true"][node], table["if_false"][node])
            leaf[row, tree] = here[0]

    shape: tuple[Size, Size] = (rows, count)
    inputs = [x, *tables.values()]
    return emit_loops(bb, "leaves_of_trees", inputs, [(shape, "int32")], body)[0]


def _stored(table: np.ndarray, dtype: str) -> relax.Expr:
    dtype = dtype if table.dtype.kind == "f" else "int32"
    return relax.const(table.astype(dtype), dtype)


def _compared(
    value: tirx.Expr, split: tirx.Expr, mode: tirx.Expr, modes: Sequence[int]
) -> tirx.Expr:
    """The comparison of a node, of those ``modes`` that occur in the forest."""
    every = (
        value <= split,
        value < split,
        value >= split,
        value > split,
        tirx.EQ(value, split),
        # TVM's comparison is false for NaN, C's and ONNX Runtime's is true.
        tirx.any(tirx.NE(value, split), tirx.isnan(value)),
    )
    if not modes:
        return tirx.const(True, "bool")
    takes = every[modes[-1]]
    for other in modes[:-1]:
        takes = tirx.any(tirx.all(mode == other, every[other]), tirx.all(mode != other, takes))
    return takes


def aggregated(
    bb: relax.BlockBuilder, leaves: relax.Expr, forest: Forest, how: str, dtype: str
) -> relax.Expr:
    """SUM, AVERAGE, MIN or MAX over the trees of what their leaves say, ``(rows, targets)``.

    A target that no leaf of a row speaks of is 0.
    """
    kind = {"MIN": np.inf, "MAX": -np.inf}.get(how)
    weights = forest.weights if kind is None else np.where(forest.hit, forest.weights, kind)
    trees, targets = len(forest.roots), weights.shape[1]

    def total(leaves: te.Tensor, weights: te.Tensor) -> te.Tensor:
        tree = te.reduce_axis((0, trees), name="tree")
        reduce = {"MIN": te.min, "MAX": te.max}.get(how, te.sum)
        return te.compute(
            (leaves.shape[0], targets),
            lambda row, target: reduce(weights[leaves[row, tree], target], axis=tree),
            name="aggregated",
        )

    result = bb.emit_te(total, leaves, relax.const(weights.astype(dtype), dtype))
    if how == "AVERAGE":
        result = bb.emit(relax.op.divide(result, relax.const(trees, dtype)))
    if kind is not None and not forest.hit.all():
        silent = relax.op.isinf(result)
        result = bb.emit(relax.op.where(silent, relax.const(0, dtype), result))
    return result
