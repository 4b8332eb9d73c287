"""TreeEnsembleRegressor, TreeEnsembleClassifier and TreeEnsemble of ai.onnx.ml."""

from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax

from tvm_ext.errors import FormError
from tvm_ext.hardware.tvm_compat import OnnxOpConverter
from tvm_ext.onnx_frontend.converters.arguments import text
from tvm_ext.onnx_frontend.converters.ml.labels import chosen, floats, integer_labels, one_of_two
from tvm_ext.onnx_frontend.converters.ml.post_transform import post_transformed
from tvm_ext.onnx_frontend.converters.ml.tree_walk import tree_scores
from tvm_ext.onnx_frontend.converters.ml.trees import MEMBER, MODES, Forest, from_nodes

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
        forest = _forest(attr, "target", targets)
        scores = tree_scores(bb, x, forest, how, _numbers(attr, "base_values"))
        return _single(bb, post_transformed(bb, scores, post))


class TreeEnsembleClassifier(OnnxOpConverter):
    """The labels, which must be integers, and the scores of the classes.

    Of two classes the leaves give the score of the second one, under class 0, as exporters write
    binary models; the first class gets what is left, as in ONNX Runtime.
    """

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        labels = integer_labels(attr, "classlabels_int64s")
        x = floats(bb, inputs[0])
        forest = _forest(attr, "class", len(labels))
        scores = tree_scores(bb, x, forest, "SUM", np.zeros(0))
        base, post = _numbers(attr, "base_values"), _post(attr)
        mentioned = set(attr["class_ids"])
        if len(labels) == 2:
            if mentioned != {0}:
                raise FormError(
                    f"its two classes get weights under the class_ids {sorted(mentioned)}, for "
                    "which ONNX Runtime and the specification give other labels; expected the "
                    "score of the second class alone, under class_id 0"
                )
            if base.size > 1:
                raise FormError(f"its one score has {base.size} base_values, expected at most one")
            positive = bool((_numbers(attr, "class_weights") >= 0).all())
            column = relax.const([0], "int64")
            score = bb.emit(relax.op.take(scores, column, axis=1, mode="clip"))
            return _binary(bb, _based(bb, score, base), labels, positive, post)
        scores = _based(bb, scores, base)
        chosen_labels = chosen(bb, scores, labels)
        return relax.Tuple([chosen_labels, _single(bb, post_transformed(bb, scores, post))])


def _binary(
    bb: relax.BlockBuilder, score: relax.Expr, labels: np.ndarray, positive: bool, post: str
) -> relax.Tuple:
    """Probabilities when no weight is negative, else distances from zero.

    ONNX Runtime leaves a transform out that the first do not need, or that is not LOGISTIC; where
    it and the specification differ the model is refused.
    """
    if post != "NONE" and (positive or post != "LOGISTIC"):
        raise FormError(
            f"its post_transform {post} is of one score for two classes, which ONNX Runtime leaves "
            "out; expected NONE, or LOGISTIC with weights of both signs"
        )
    dtype = str(score.ty.dtype)
    threshold = 0.5 if positive else 0.0
    label = one_of_two(bb, score, threshold, int(labels[0]), int(labels[1]))
    if positive:
        other = bb.emit(relax.op.subtract(relax.const(1, dtype), score))
    else:
        other = bb.emit(relax.op.negative(score))
    scores = bb.emit(relax.op.concat([other, score], axis=1))
    return relax.Tuple([label, _single(bb, post_transformed(bb, scores, post))])


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


def _based(bb: relax.BlockBuilder, scores: relax.Expr, base: np.ndarray) -> relax.Expr:
    if not base.size:
        return scores
    dtype = str(scores.ty.dtype)
    return bb.emit(relax.op.add(scores, relax.const(base.astype(dtype).reshape(1, -1), dtype)))


def _single(bb: relax.BlockBuilder, scores: relax.Expr) -> relax.Expr:
    if str(scores.ty.dtype) == "float32":
        return scores
    return bb.emit(relax.op.astype(scores, "float32"))


def _forest(attr: dict, kind: str, targets: int) -> Forest:
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
    weights, hit = _leaf_table(attr, kind, targets, place)
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
    attr: dict, kind: str, targets: int, place: dict[tuple[int, int], int]
) -> tuple[np.ndarray, np.ndarray]:
    weights = np.zeros((len(place), targets), np.float64)
    hit = np.zeros((len(place), targets), bool)
    keys = (attr[f"{kind}_{name}"] for name in ("treeids", "nodeids", "ids"))
    for tree, node, target, weight in zip(*keys, _numbers(attr, f"{kind}_weights"), strict=True):
        leaf = place.get((tree, node))
        if leaf is None or not 0 <= target < targets:
            raise FormError(f"a weight is of node {node} and {kind} {target}, which do not exist")
        weights[leaf, target] += weight
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
