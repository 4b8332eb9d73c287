"""Tree ensembles as tables of nodes: what to compare with what, and where to go from there."""

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
            raise FormError("its nodes lead in a circle; expected trees")
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
