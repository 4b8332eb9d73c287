"""TreeEnsembleRegressor, TreeEnsembleClassifier and TreeEnsemble of ai.onnx.ml."""

import operator
from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import text
from tvm_ext.onnx_frontend.converters.ml.scores_and_labels import (
    floats,
    integer_labels,
    one_of_two,
    post_transformed,
)
from tvm_ext.onnx_frontend.converters.ml.tree_walk import Verdict, tree_labels, tree_scores
from tvm_ext.onnx_frontend.converters.ml.trees import MEMBER, MODES, Forest, from_nodes
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


class TreeEnsembleRegressor(OnnxOpConverter):
    """One score a target, aggregated over trees; float32 whatever the input."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        targets = int(attr.get("n_targets", 1))
        how, post = text(attr, "aggregate_function", "SUM"), _post(attr)
        if how not in _AGGREGATES:
            raise FormError(f"its aggregate_function '{how}' is unknown")
        if targets == 1 and post not in ("NONE", "PROBIT"):
            raise FormError(
                f"its post_transform {post} is of one target, which ONNX Runtime leaves out; "
                "expected NONE or PROBIT: add the transform as an operator of its own"
            )
        x = floats(bb, inputs[0])
        forest = _forest(attr, "target", targets, how)
        scores = tree_scores(bb, x, forest, how, _numbers(attr, "base_values"))
        return _single(bb, post_transformed(bb, scores, post))


class TreeEnsembleClassifier(OnnxOpConverter):
    """The labels, which must be integers, and the scores of the classes, as in ONNX Runtime.

    Of two classes the leaves mostly give one score, of the second class under class_id 0; the
    first class gets what is left.
    """

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        labels = integer_labels(attr, "classlabels_int64s")
        x = floats(bb, inputs[0])
        forest = _forest(attr, "class", len(labels))
        base, post = _numbers(attr, "base_values"), _post(attr)
        if base.size > len(labels):
            raise FormError(f"it has {base.size} base_values for {len(labels)} classes")
        if len(labels) == 2:
            return _of_two_classes(bb, x, forest, attr, labels)
        base = np.pad(base, (0, len(labels) - base.size))
        label, scores = tree_labels(bb, x, forest, base, Verdict(labels))
        return relax.Tuple([label, _single(bb, post_transformed(bb, scores, post))])


def _of_two_classes(
    bb: relax.BlockBuilder, x: relax.Expr, forest: Forest, attr: dict, labels: np.ndarray
) -> relax.Tuple:
    """What ONNX Runtime makes of it depends on the classes that leaves mention, and on signs."""
    base = _numbers(attr, "base_values")
    first, second = (bool(forest.hit[:, place].any()) for place in (0, 1))
    if second and not forest.hit[:, 1].all():
        raise FormError(
            "some of its leaves have no weight for the second class; expected one for each leaf"
        )
    alone = first != second
    positive = bool((_numbers(attr, "class_weights") >= 0).all())
    threshold = 0.5 if alone and positive else 0.0
    # Without the one score of the second class the labels are these, whatever classlabels say.
    pair = labels if alone else np.array([0, 1])
    if not second and base.size < 2:
        verdict = Verdict(pair, threshold, _opposite(positive, _post(attr)))
        label, both = tree_labels(bb, x, forest.of_target(0), base, verdict)
        return relax.Tuple([label, _single(bb, post_transformed(bb, both, _two(_post(attr))))])
    # The base value of the first class stands for one score as well.
    added = np.array([base[0] if base.size == 1 or (not second and base.size) else 0.0, 0.0])
    scores = tree_scores(bb, x, forest, "SUM", added)
    one, other = (_column(bb, scores, place) for place in (0, 1))
    if second and base.size == 2:
        other = bb.emit(relax.op.add(one, _number(base[1], one)))
        one = bb.emit(relax.op.negative(other))
    label = one_of_two(bb, other if second else one, threshold, *(int(one) for one in pair))
    nothing = bb.emit(relax.op.zeros_like(one))
    columns = [one if first else nothing, other if second else nothing]
    both = bb.emit(relax.op.concat(columns, axis=1))
    return relax.Tuple([label, _single(bb, post_transformed(bb, both, _post(attr)))])


def _opposite(positive: bool, post: str) -> float:
    """Two scores of one are probabilities when no weight is negative, else distances from zero."""
    if post == "PROBIT":
        raise FormError(
            "its post_transform PROBIT is of one score for two classes, of which ONNX Runtime "
            "leaves the second undefined; expected another one"
        )
    return 1.0 if positive and post != "LOGISTIC" else 0.0


def _two(post: str) -> str:
    """Of one score ONNX Runtime knows no transform but LOGISTIC."""
    return post if post == "LOGISTIC" else "NONE"


def _column(bb: relax.BlockBuilder, scores: relax.Expr, place: int) -> relax.Expr:
    return bb.emit(relax.op.take(scores, relax.const([place], "int64"), axis=1, mode="clip"))


def _number(value: float, like: relax.Expr) -> relax.Expr:
    dtype = str(like.ty.dtype)
    return relax.const(np.asarray(value, dtype), dtype)


class TreeEnsemble(OnnxOpConverter):
    """The operator that replaces both from version 5 on: scores only, nodes and leaves apart."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        given = str(inputs[0].ty.dtype)
        x = floats(bb, inputs[0])
        forest = _forest_of_version_5(attr)
        how = _AGGREGATES[int(attr.get("aggregate_function", 1))]
        scores = tree_scores(bb, x, forest, how, np.zeros(0))
        scores = post_transformed(bb, scores, _TRANSFORMS[int(attr.get("post_transform", 0))])
        return bb.emit(relax.op.astype(scores, given)) if str(x.ty.dtype) != given else scores


def _post(attr: dict) -> str:
    return text(attr, "post_transform", "NONE")


def _numbers(attr: dict, name: str) -> np.ndarray:
    """A list of floats, or the tensor beside it that holds doubles."""
    tensor = attr.get(f"{name}_as_tensor")
    if tensor is not None and tensor.dims:
        return numpy_helper.to_array(tensor).reshape(-1)
    return np.array(attr.get(name, ()), np.float32)


def _single(bb: relax.BlockBuilder, scores: relax.Expr) -> relax.Expr:
    if str(scores.ty.dtype) == "float32":
        return scores
    return bb.emit(relax.op.astype(scores, "float32"))


def _forest(attr: dict, kind: str, targets: int, how: str = "SUM") -> Forest:
    """The forest of the two older operators; ``kind`` is target or class."""
    nodes = list(zip(attr["nodes_treeids"], attr["nodes_nodeids"], strict=True))
    place = {node: index for index, node in enumerate(nodes)}
    modes = [mode.decode() for mode in attr["nodes_modes"]]
    unknown = sorted(set(modes) - {*MODES, "LEAF"})
    if unknown:
        raise FormError(f"its nodes have the mode {unknown[0]}, which is unknown")
    leaves = np.array([mode == "LEAF" for mode in modes])
    following = {
        name: np.array(
            [
                0 if leaf else place.get((tree, node), -1)
                for leaf, (tree, _), node in zip(
                    leaves, nodes, attr[f"nodes_{side}nodeids"], strict=True
                )
            ]
        )
        for name, side in (("if_true", "true"), ("if_false", "false"))
    }
    first = {tree: index for index, (tree, _) in reversed(list(enumerate(nodes)))}
    roots = np.array([first[tree] for tree in sorted(first)])
    weights, hit = _leaf_table(attr, kind, targets, place, how)
    missing = attr.get("nodes_missing_value_tracks_true") or [0] * len(nodes)
    tables = {
        "feature": attr["nodes_featureids"],
        "mode": [MODES.index(mode) if mode in MODES else 0 for mode in modes],
        "missing_true": missing,
        "split": _numbers(attr, "nodes_values"),
        **following,
    }
    return from_nodes(tables, leaves, roots=roots, weights=weights[leaves], hit=hit[leaves])


def _leaf_table(
    attr: dict, kind: str, targets: int, place: dict[tuple[int, int], int], how: str
) -> tuple[np.ndarray, np.ndarray]:
    """What each node adds to each target, and whether it speaks of it.

    Weights of one leaf and target are aggregated as those of trees are, but where there is one
    target only the first counts.
    """
    again = {"MIN": min, "MAX": max}.get(how, operator.add)
    weights = np.zeros((len(place), targets), np.float64)
    hit = np.zeros((len(place), targets), bool)
    keys = (attr[f"{kind}_{name}"] for name in ("treeids", "nodeids", "ids"))
    for tree, node, target, weight in zip(*keys, _numbers(attr, f"{kind}_weights"), strict=True):
        leaf = place.get((tree, node))
        if leaf is None or not 0 <= target < targets:
            raise FormError(f"a weight is of node {node} and {kind} {target}, which do not exist")
        if not hit[leaf, target]:
            weights[leaf, target] = weight
        elif targets > 1:
            weights[leaf, target] = again(weights[leaf, target], weight)
        hit[leaf, target] = True
    return weights, hit


def _forest_of_version_5(attr: dict) -> Forest:
    """Leaves in front, then the nodes, then those that a test for membership is spread over."""
    arrays = {name: numpy_helper.to_array(attr[f"nodes_{name}"]) for name in ("splits", "modes")}
    leaf_weights = numpy_helper.to_array(attr["leaf_weights"]).reshape(-1)
    leaf_targets = np.array(attr["leaf_targetids"])
    leaves, inner = len(leaf_weights), len(arrays["modes"])
    missing = attr.get("nodes_missing_value_tracks_true") or [0] * inner
    following = {}
    for name, side in (("if_true", "true"), ("if_false", "false")):
        ids = np.array(attr[f"nodes_{side}nodeids"])
        ends = np.array(attr[f"nodes_{side}leafs"]).astype(bool)
        limit = np.where(ends, leaves, inner)
        if ((ids < 0) | (ids >= limit)).any():
            raise FormError("its trees lead to nodes or leaves that do not exist")
        following[name] = np.where(ends, ids, ids + leaves).tolist()
    roots = []
    for root in attr["tree_roots"]:
        if not 0 <= root < inner:
            raise FormError(f"its tree_roots name node {root} of {inner}")
        one, other = following["if_true"][root], following["if_false"][root]
        roots.append(one if one == other < leaves else root + leaves)
    rows = {
        "feature": list(attr["nodes_featureids"]),
        "mode": arrays["modes"].astype(int).tolist(),
        "missing_true": list(missing),
        "split": arrays["splits"].reshape(-1).astype(np.float64).tolist(),
        **following,
    }
    _spread_memberships(rows, attr, leaves)
    tables = {name: [0] * leaves + row for name, row in rows.items()}
    targets = int(attr["n_targets"])
    if leaf_targets.size != leaves or (leaves and not 0 <= leaf_targets.max() < targets):
        raise FormError(f"its leaves are of targets beyond n_targets, {targets}")
    hit = leaf_targets[:, None] == np.arange(targets)
    weights = np.where(hit, leaf_weights[:, None].astype(np.float64), 0.0)
    front = np.arange(len(tables["feature"])) < leaves
    tables["split"] = np.array(tables["split"], np.float64)
    return from_nodes(tables, front, roots=np.array(roots), weights=weights, hit=hit)


def _spread_memberships(rows: dict[str, list], attr: dict, leaves: int) -> None:
    """A test for one of several values becomes a chain of tests for equality."""
    tests = [index for index, mode in enumerate(rows["mode"]) if mode == MEMBER]
    if not tests:
        return
    given = attr.get("membership_values")
    values = [] if given is None else numpy_helper.to_array(given).reshape(-1).tolist()
    sets: list[list[float]] = [[]]
    for value in values:
        if np.isnan(value):
            sets.append([])
        else:
            sets[-1].append(value)
    sets = sets[: len(tests)] if not sets[-1] else sets
    if len(sets) != len(tests):
        raise FormError(f"it has {len(tests)} tests for membership and {len(sets)} lists of values")
    equal = MODES.index("BRANCH_EQ")
    for node, members in zip(tests, sets, strict=True):
        rows["mode"][node] = equal
        rows["split"][node] = members[0] if members else np.nan
        last, otherwise = node, rows["if_false"][node]
        for member in members[1:]:
            rows["if_false"][last] = leaves + len(rows["mode"])
            for name in ("feature", "missing_true", "if_true"):
                rows[name].append(rows[name][node])
            rows["mode"].append(equal)
            rows["split"].append(member)
            rows["if_false"].append(otherwise)
            last = len(rows["mode"]) - 1
