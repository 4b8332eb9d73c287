"""Tree ensembles as data: tables of nodes, and records of two words for the kernel that walks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvm_ext.errors import FormError

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

    def of_target(self, target: int) -> "Forest":
        """The same trees, speaking of one target only."""
        alone = slice(target, target + 1)
        return replace(self, weights=self.weights[:, alone], hit=self.hit[:, alone])

    @property
    def depths(self) -> np.ndarray:
        """int32[trees]: steps from each root to the deepest leaf under it.

        Raises
        ------
        FormError
            The nodes lead in a circle.
        """
        leaves, count = len(self.weights), len(self.feature)
        height = np.where(np.arange(count) < leaves, 0, -1)
        for _ in range(count):
            unknown = np.flatnonzero(height < 0)
            below = np.stack([height[self.if_true[unknown]], height[self.if_false[unknown]]])
            found = (below >= 0).all(axis=0)
            if not found.any():
                break
            height[unknown[found]] = 1 + below[:, found].max(axis=0)
        # A circle that no root leads to does no harm.
        if (height[self.roots] < 0).any():
            raise FormError("its nodes form a cycle; expected trees")
        return height[self.roots].astype(np.int32)


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


# The nodes of a forest as records of two words, in an order in which walks meet few cache lines.
#
# The first word of a node is what its column is compared with. The second, the link, says where
# both ways lead, and which column it is:
#
#     child << ... | column << ... | outcomes << 1 | is no leaf
#
# The record of the false way follows ``child``, that of the true way is the next: 1 or 2, which
# is 1 shifted, are added. Bits for the outcomes that are true, of a value that is greater, less,
# equal or NaN, are there only if a forest needs them. A leaf leads to itself; its first word is
# what it says.
#
# Records ``0`` to ``trees - 1`` are the roots. After them, pair after pair, come the two ways of
# each node, and those of its children lie in the same cache line as far as that reaches: a walk
# meets half as many lines as levels, or fewer. A node that several others lead to is copied, the
# pair below it is not.


_LINE_BYTES = 64

IS_INNER = 1

# Outcomes: the position of the bit is 1 for a value that is less or equal, and 2 more for one that
# is greater or equal.
_NAN, _LESS, _GREATER, _EQUAL = 1, 2, 4, 8
_OUTCOMES = 4
_TRUE_FOR = {
    "BRANCH_LEQ": _LESS | _EQUAL,
    "BRANCH_LT": _LESS,
    "BRANCH_GTE": _GREATER | _EQUAL,
    "BRANCH_GT": _GREATER,
    "BRANCH_EQ": _EQUAL,
    "BRANCH_NEQ": _GREATER | _LESS | _NAN,
}


@dataclass(frozen=True)
class NodeRecords:
    """The records, and what a walk has to know of them.

    Attributes
    ----------
    words : numpy.ndarray
        uint32 or uint64[records, 2]; uint64 for doubles, and where a link needs more than 32 bits.
    has_outcomes : bool
        Whether a link has bits for outcomes; else a node's comparison is ``x <= split``.
    column_shift, child_shift : int
        Where a link has its column and its child.
    column_mask : int
        For the column, when it is shifted down.
    node, tree : numpy.ndarray
        int32[records]: which node of the forest a record is of, and which tree; -1 for padding.
    shared : bool
        Whether several nodes lead to the same one that is no leaf.
    """

    words: np.ndarray
    has_outcomes: bool
    column_shift: int
    column_mask: int
    child_shift: int
    node: np.ndarray
    tree: np.ndarray
    shared: bool

    @property
    def word(self) -> str:
        """The type of the words."""
        return str(self.words.dtype)


def node_records(forest: Forest, said: np.ndarray, dtype: str) -> NodeRecords:
    """The records of a forest for rows of ``dtype``; ``said`` is what each leaf says."""
    leaves = len(forest.weights)
    inner = np.arange(len(forest.split)) >= leaves
    mode = np.array(MODES)[forest.mode]
    has_outcomes = bool((inner & (forest.missing_true != 0)).any())
    has_outcomes = has_outcomes or not np.isin(mode[inner], ("BRANCH_LEQ", "BRANCH_LT")).all()
    ways = [forest.if_true, forest.if_false]
    if has_outcomes:
        marks = np.where(inner, _outcomes(forest, mode) << 1 | IS_INNER, 0)
        # A NaN would not tell NaN from numbers.
        split = np.where(np.isnan(forest.split), np.inf, forest.split).astype(dtype)
    else:
        split = _less_or_equal(forest, mode, dtype)
        marks = np.where(inner, IS_INNER, 0)
    column_shift = 1 + (_OUTCOMES if has_outcomes else 0)
    column_bits = int(forest.feature.max(initial=0)).bit_length()
    child_shift = column_shift + column_bits
    # Padding at most doubles the records.
    narrow = dtype == "float32" and child_shift + (4 * len(split) + 64).bit_length() <= 32
    word = np.uint32 if narrow else np.uint64
    line = _LINE_BYTES // (2 * np.dtype(word).itemsize)
    order = _PairOrder(forest.roots, ways[::-1], leaves, line // 2)
    first = -(-len(forest.roots) // line) * line
    node, tree = order.records(first)

    place = np.arange(len(node), dtype=np.int64)
    child = np.where(inner[node], first + 2 * order.slot[node] - 1, place)
    link = (child << child_shift) | (forest.feature[node] << column_shift) | marks[node]
    bits = split.view("uint32" if dtype == "float32" else "uint64").astype(word)
    bits[:leaves] = said.view(f"uint{8 * said.itemsize}")
    words = np.stack([bits[node], link.astype(word)], axis=1)
    mask = (1 << column_bits) - 1
    shared = order.shared
    return NodeRecords(words, has_outcomes, column_shift, mask, child_shift, node, tree, shared)


def _outcomes(forest: Forest, mode: np.ndarray) -> np.ndarray:
    """Of each node the bits of the outcomes for which it is true."""
    true_for = np.array([_TRUE_FOR[one] for one in MODES])[forest.mode]
    # Compared with NaN every number is unequal, and nothing else.
    unequal = np.where(mode == "BRANCH_NEQ", _NAN | _LESS | _GREATER | _EQUAL, 0)
    true_for = np.where(np.isnan(forest.split), unequal, true_for)
    return np.where(forest.missing_true != 0, true_for | _NAN, true_for)


def _less_or_equal(forest: Forest, mode: np.ndarray, dtype: str) -> np.ndarray:
    """What is compared with by ``<=``: ``x < split`` is that with the number below."""
    split = forest.split.astype(dtype)
    # Nothing is below the least number.
    lower = np.where(np.isneginf(split), np.nan, np.nextafter(split, -np.inf))
    return np.where(mode == "BRANCH_LT", lower, split).astype(dtype)


class _PairOrder:
    """Where the pair below each node lies, for all trees at once.

    Attributes
    ----------
    slot : numpy.ndarray
        int64[nodes]: the place of the pair, 0 for leaves.
    shared : bool
        As in ``NodeRecords``.
    """

    def __init__(self, roots: np.ndarray, ways: list[np.ndarray], leaves: int, pairs: int) -> None:
        self._roots, self._ways, self._leaves, self._pairs = roots, ways, leaves, pairs
        self._reached = np.zeros(len(ways[0]), bool)
        self.shared = False
        lines, trees = self._lines()
        sizes = (lines >= 0).sum(axis=1)
        order = self._best_order(sizes, trees)
        lines, trees, sizes = lines[order], trees[order], sizes[order]
        # A tree begins with a line of its own.
        ends = np.cumsum(sizes)
        new = np.flatnonzero(np.diff(trees, prepend=-1))
        total = np.diff(ends[new] - sizes[new], append=ends[-1] if len(ends) else 0)
        padding = np.zeros(len(sizes), np.int64)
        padding[new[1:]] = (-total % pairs)[:-1]
        start = ends - sizes + np.cumsum(padding)
        self.slot = np.zeros(len(ways[0]), np.int64)
        self._tree = np.zeros(len(ways[0]), np.int32)
        for position in range(lines.shape[1]):
            held = lines[:, position] >= 0
            self.slot[lines[held, position]] = start[held] + position
            self._tree[lines[held, position]] = trees[held]
        self._inner = lines[lines >= 0]

    def records(self, first: int) -> tuple[np.ndarray, np.ndarray]:
        """The node and the tree of each record; pairs begin at record ``first``.

        What pads is a copy of node 0, a leaf.
        """
        count = first + 2 * (int(self.slot[self._inner].max(initial=-1)) + 1)
        node, tree = np.zeros(count, np.int32), np.full(count, -1, np.int32)
        trees = len(self._roots)
        node[:trees], tree[:trees] = self._roots, np.arange(trees)
        for side, way in enumerate(self._ways):
            place = first + 2 * self.slot[self._inner] + side
            node[place], tree[place] = way[self._inner], self._tree[self._inner]
        return node, tree

    def _lines(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes whose pairs share a line, -1 for none, and the tree of each line."""
        lines, owners = [], []
        top, tree = self._new(self._roots, np.arange(len(self._roots), dtype=np.int32))
        while len(top):
            line = np.full((len(top), self._pairs), -1, np.int64)
            line[:, 0] = top
            self._filled(line)
            lines.append(line)
            owners.append(tree)
            held = line >= 0
            above, tree = line[held], np.repeat(tree, held.sum(axis=1))
            below = np.concatenate([way[above] for way in self._ways])
            again = self._reached[below] & (below >= self._leaves)
            # Pairs in the line of their parents have been reached from there.
            self.shared |= int(again.sum()) > int(held[:, 1:].sum())
            top, tree = self._new(below, np.concatenate([tree, tree]))
        if not lines:
            return np.zeros((0, self._pairs), np.int64), np.zeros(0, np.int32)
        return np.concatenate(lines), np.concatenate(owners)

    def _filled(self, line: np.ndarray) -> None:
        """Puts children into the free places of each line, level by level."""
        count = np.ones(len(line), np.int64)
        for position in range(self._pairs):
            for way in self._ways:
                above = line[:, position]
                below = np.where(above >= 0, way[above], 0)
                fits = np.flatnonzero((above >= 0) & (count < self._pairs))
                found, kept = self._new(below[fits], fits)
                line[kept, count[kept]] = found
                count[kept] += 1

    def _new(self, nodes: np.ndarray, beside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those that are no leaves and not yet reached, once each, with what is beside them."""
        fresh = np.flatnonzero((nodes >= self._leaves) & ~self._reached[nodes])
        found, first = np.unique(nodes[fresh], return_index=True)
        self.shared |= len(found) < len(fresh)
        self._reached[found] = True
        return found, beside[fresh[first]]

    def _best_order(self, sizes: np.ndarray, trees: np.ndarray) -> np.ndarray:
        """Tree by tree whole lines, then those that make up a line by twos, then the others."""
        group = np.minimum(sizes, self._pairs - sizes)
        order = np.lexsort((sizes, group, trees))
        # Of a group of unequal sizes, the first of one beside the first of the other.
        key = trees[order].astype(np.int64) * (self._pairs + 1) + sizes[order]
        begins = np.flatnonzero(np.diff(key, prepend=-1))
        rank = np.arange(len(key)) - np.repeat(begins, np.diff(begins, append=len(key)))
        ranks = np.empty(len(key), np.int64)
        ranks[order] = rank
        return np.lexsort((-sizes, ranks, group, trees))
