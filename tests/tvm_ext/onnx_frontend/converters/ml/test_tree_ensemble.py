"""Tree ensembles of ai.onnx.ml against ONNX Runtime."""

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from combinations import pairwise
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_models import check, ml_model, refused
from one_model import in_one_model
from onnx import TensorProto, numpy_helper
from thoroughness import DRAWS, some_of
from unoptimised import HOST

import tvm_ext

NAN = float("nan")

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")

COLUMNS = 4


def forest(
    random: np.random.Generator, kind: str, trees: int, depth: int, targets: list, modes: tuple
) -> dict[str, Any]:
    """Random trees with the attributes of a regressor (kind target) or classifier (class)."""
    names = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    table: dict[str, list] = {f"nodes_{name}": [] for name in names}
    table["nodes_missing_value_tracks_true"] = []
    leaf: dict[str, list] = {f"{kind}_{name}": [] for name in ("treeids", "nodeids", "ids")}
    leaf[f"{kind}_weights"] = []

    def grow(tree: int, counter: list[int], level: int) -> int:
        place = counter[0]
        counter[0] += 1
        ends = level == depth or (level > 0 and random.random() < 0.3)
        row = len(table["nodes_nodeids"])
        values = (
            tree, place, int(random.integers(COLUMNS)), "LEAF" if ends else random.choice(modes),
            float(random.integers(-2, 3)), 0, 0,
        )  # fmt: skip
        for name, value in zip(names, values, strict=True):
            table[f"nodes_{name}"].append(value)
        table["nodes_missing_value_tracks_true"].append(int(random.integers(2)))
        if ends:
            for target in targets:
                for name, value in zip(("treeids", "nodeids", "ids"), (tree, place, target),
                                       strict=True):  # fmt: skip
                    leaf[f"{kind}_{name}"].append(value)
                leaf[f"{kind}_weights"].append(float(random.normal()))
        else:
            table["nodes_truenodeids"][row] = grow(tree, counter, level + 1)
            table["nodes_falsenodeids"][row] = grow(tree, counter, level + 1)
        return place

    for tree in range(trees):
        grow(tree, [0], 0)
    return table | leaf


def rows(random: np.random.Generator, count: int = 30) -> np.ndarray:
    """Small whole numbers, so that equality is met, and some NaN."""
    x = random.integers(-3, 4, size=(count, COLUMNS)).astype(np.float32)
    x[random.random(x.shape) < 0.1] = NAN
    return x


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize(
    ("modes", "how", "post", "targets"),
    [
        (MODES, "SUM", "NONE", 1),
        (MODES[:1], "AVERAGE", "NONE", 3),
        (MODES[1:3], "MIN", "NONE", 1),
        (MODES, "MAX", "SOFTMAX", 2),
        (MODES, "SUM", "LOGISTIC", 3),
        (MODES[:1], "SUM", "SOFTMAX_ZERO", 3),
    ],
)
def test_tree_regressor(modes: tuple, how: str, post: str, targets: int) -> None:
    random = np.random.default_rng(5)
    x = rows(random)
    attributes = forest(random, "target", 3, 4, list(range(targets)), modes)
    base = random.normal(size=targets).tolist()
    proto = ml_model(
        "TreeEnsembleRegressor", [x], [TensorProto.FLOAT], n_targets=targets, base_values=base,
        aggregate_function=how, post_transform=post, **attributes,
    )  # fmt: skip
    check(proto, x)


@pytest.mark.extended
@in_one_model
@pairwise(targets=[[0, 0, 0], [0, 1, 0]], how=["SUM", "MAX"])
def test_leaves_that_speak_of_a_target_again(targets: list, how: str) -> None:
    random = np.random.default_rng(5)
    x = rows(random)
    attributes = forest(random, "target", 3, 4, targets, MODES[:1])
    proto = ml_model(
        "TreeEnsembleRegressor", [x], [TensorProto.FLOAT], n_targets=max(targets) + 1,
        aggregate_function=how, **attributes,
    )  # fmt: skip
    check(proto, x)


@pytest.mark.slow
def test_tree_regressor_of_integers_and_of_doubles() -> None:
    random = np.random.default_rng(6)
    x = random.integers(-3, 4, size=(9, COLUMNS))
    attributes = forest(random, "target", 3, 4, [0], MODES)
    found = {}
    for dtype in (np.float32, np.int64, np.float64):
        proto = ml_model(
            "TreeEnsembleRegressor", [x.astype(dtype)], [TensorProto.FLOAT], n_targets=1,
            **attributes,
        )  # fmt: skip
        found[dtype] = tvm_ext.compile(proto, HOST).run({"x0": x.astype(dtype)})["y0"]
        assert found[dtype].dtype == np.float32
        np.testing.assert_allclose(found[dtype], found[np.float32], rtol=1e-6)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(
    ("post", "classes"),
    [
        ("NONE", [0, 1, 2]),
        ("LOGISTIC", [0, 1, 2]),
        ("SOFTMAX", [0, 1, 2]),
        ("NONE", [0]),
        ("LOGISTIC", [0]),
    ],
)
def test_tree_classifier(post: str, classes: list) -> None:
    random = np.random.default_rng(8)
    x = rows(random)
    attributes = forest(random, "class", 3, 4, classes, MODES)
    proto = ml_model(
        "TreeEnsembleClassifier", [x], [TensorProto.INT64, TensorProto.FLOAT],
        classlabels_int64s=[5, 9, 2][: max(2, len(classes))], post_transform=post, **attributes,
    )  # fmt: skip
    check(proto, x)


@pytest.mark.slow
@in_one_model
@pairwise(
    base=[None, [0.25], [0.25, 0.5]],
    classes=[[0], [1], [0, 1]],
    scores=[("NONE", True), ("LOGISTIC", False), ("SOFTMAX", False)],
)
def test_tree_classifier_of_two_classes(
    classes: list, base: list | None, scores: tuple[str, bool]
) -> None:
    post, positive = scores
    random = np.random.default_rng(8)
    x = rows(random)
    attributes = forest(random, "class", 3, 4, classes, MODES)
    if positive:
        attributes["class_weights"] = [abs(w) / 8 for w in attributes["class_weights"]]
    proto = ml_model(
        "TreeEnsembleClassifier", [x], [TensorProto.INT64, TensorProto.FLOAT],
        classlabels_int64s=[5, 9], post_transform=post, base_values=base, **attributes,
    )  # fmt: skip
    check(proto, x)


def test_tree_classifier_that_is_refused() -> None:
    random = np.random.default_rng(8)
    attributes = forest(random, "class", 2, 2, [0], MODES)
    proto = ml_model(
        "TreeEnsembleClassifier", [rows(random)], [TensorProto.INT64, TensorProto.FLOAT],
        classlabels_int64s=[5, 9], post_transform="PROBIT", **attributes,
    )  # fmt: skip
    refused(proto, "post_transform PROBIT is of one score")


def test_tree_classifier_of_two_classes_with_probabilities() -> None:
    random = np.random.default_rng(9)
    x = rows(random)
    attributes = forest(random, "class", 5, 4, [0], MODES)
    attributes["class_weights"] = [abs(w) / 8 for w in attributes["class_weights"]]
    proto = ml_model(
        "TreeEnsembleClassifier", [x], [TensorProto.INT64, TensorProto.FLOAT],
        classlabels_int64s=[0, 1], **attributes,
    )  # fmt: skip
    check(proto, x)


@pytest.mark.slow
@settings(max_examples=3 * DRAWS, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(0, 7), st.integers(1, 3))
def test_any_forest(seed: int, trees: int, depth: int, targets: int) -> None:
    random = np.random.default_rng(seed)
    x = rows(random)
    attributes = forest(random, "target", trees, depth, list(range(targets)), MODES)
    proto = ml_model(
        "TreeEnsembleRegressor", [x], [TensorProto.FLOAT], n_targets=targets, **attributes
    )
    check(proto, x)


def ensemble(members: list[float], modes: list[int], splits: list[float]) -> onnx.ModelProto:
    """Version 5: node 0 leads to leaf 0 or node 1, which leads to leaf 1 or 2."""
    tensor = numpy_helper.from_array
    return ml_model(
        "TreeEnsemble", [np.zeros((5, 2), np.float32)], [TensorProto.FLOAT], 5,
        n_targets=2, tree_roots=[0], nodes_featureids=[0, 1], nodes_truenodeids=[0, 1],
        nodes_falsenodeids=[1, 2], nodes_trueleafs=[1, 1], nodes_falseleafs=[0, 1],
        leaf_targetids=[0, 1, 0], leaf_weights=tensor(np.array([1, 10, 100], np.float32)),
        nodes_modes=tensor(np.array(modes, np.uint8)),
        nodes_splits=tensor(np.array(splits, np.float32)),
        membership_values=tensor(np.array(members, np.float32)) if members else None,
    )  # fmt: skip


def test_trees_of_version_5_with_sets() -> None:
    proto = ensemble([1, 3, NAN], [6, 0], [0, 2])
    x = np.array([[1, 0], [3, 9], [2, 2], [2, 3], [0, NAN]], np.float32)
    found = tvm_ext.compile(proto, HOST).run({"x0": x})["y0"]
    np.testing.assert_array_equal(found, [[1, 0], [1, 0], [0, 10], [100, 0], [100, 0]])


def test_trees_that_are_refused() -> None:
    random = np.random.default_rng(3)
    attributes = forest(random, "target", 1, 2, [0], MODES)
    x = np.zeros((2, COLUMNS), np.float32)

    def broken(**changes: Any) -> onnx.ModelProto:
        return ml_model("TreeEnsembleRegressor", [x], [TensorProto.FLOAT], **(attributes | changes))

    inner = attributes["nodes_modes"].index(attributes["nodes_modes"][0])
    cycle = list(attributes["nodes_truenodeids"])
    cycle[inner] = attributes["nodes_nodeids"][inner]
    refused(broken(nodes_truenodeids=cycle), "node 'node' .*cycle")
    refused(broken(nodes_truenodeids=[77] * len(cycle)), "lead outside")
    refused(broken(nodes_featureids=[9] * len(cycle)), "read column 9, and its input has 4 columns")
    refused(broken(target_nodeids=[99] * len(attributes["target_ids"])), "do not exist")
    refused(broken(post_transform="LOGISTIC"), "post_transform LOGISTIC is of one target")
    refused(broken(nodes_values=[1.0]), "tables split do not fit")


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize(
    "targets", some_of([[0, 0, 0, 0], [0, 1, 0, 0], [2, 0, 0, 0], [0, 0, 1, 1]])
)
def test_a_target_that_no_leaf_of_a_row_speaks_of(how: str, targets: list[int]) -> None:
    # ONNX Runtime leaves out its base value as well.
    x = np.array([[-1], [1], [2], [-3]], np.float32)
    attributes: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2] * 2,
        "nodes_featureids": [0] * 6, "nodes_values": [0.0] * 6,
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * 2,
        "nodes_truenodeids": [1, 0, 0] * 2, "nodes_falsenodeids": [2, 0, 0] * 2,
        "target_treeids": [0, 0, 1, 1], "target_nodeids": [1, 2, 1, 2],
        "target_ids": targets, "target_weights": [1.0, -0.0, 3.0, 4.0],
    }  # fmt: skip
    proto = ml_model(
        "TreeEnsembleRegressor", [x], [TensorProto.FLOAT], n_targets=3, aggregate_function=how,
        base_values=[10.0, 20.0, 30.0], **attributes,
    )  # fmt: skip
    check(proto, x)


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize(("trees", "count"), some_of(itertools.product([1, 8, 21], [1, 7, 8, 19])))
def test_rows_and_trees_that_do_not_fill_what_goes_side_by_side(count: int, trees: int) -> None:
    random = np.random.default_rng(count)
    x = rows(random, count)
    attributes = forest(random, "target", trees, 9, [0], MODES[:2])
    attributes["nodes_missing_value_tracks_true"] = None
    proto = ml_model(
        "TreeEnsembleRegressor", [x], [TensorProto.FLOAT], n_targets=1, **attributes
    )  # fmt: skip
    check(proto, x)


@pytest.mark.extended
def test_trees_of_one_target_each() -> None:
    """As boosting writes classes: what a leaf says is in its node."""
    random = np.random.default_rng(3)
    x = rows(random)
    tables: dict[str, list] = {}
    for tree in range(9):
        one = forest(random, "class", 1, 4, [tree % 3], MODES[:1])
        one |= {name: [tree] * len(one[name]) for name in ("nodes_treeids", "class_treeids")}
        for name, values in one.items():
            tables.setdefault(name, []).extend(values)
    proto = ml_model(
        "TreeEnsembleClassifier", [x], [TensorProto.INT64, TensorProto.FLOAT],
        classlabels_int64s=[4, 2, 9], post_transform="SOFTMAX", base_values=[0.5, 0.1, -1.0],
        **tables,
    )  # fmt: skip
    check(proto, x)
