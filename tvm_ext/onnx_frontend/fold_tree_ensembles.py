"""What a model makes of the leaves of single trees, and the sums of them, as one tree ensemble.

    Before: ``Sum(f(leaf(tree_1, x)), f(leaf(tree_2, x)), ...)``, f of some twenty operators
    After:  one TreeEnsembleRegressor whose leaves hold what f makes of them

A tree gives one of the few values of its leaves, so that a function of each row of its result is
computed beforehand. An isolation forest is written so: 550 nodes for 20 trees. Trees of one input
that are added or concatenated are one ensemble.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from tvm_ext.onnx_frontend.ir_edits import Inserter, constant_of, replace_outputs

_ML = "ai.onnx.ml"

# A row of the result depends on that row of the operands alone. Reshape does where it keeps the
# number of rows, which is looked at.
_BY_ROWS = {
    **dict.fromkeys(
        (
            *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Equal", "Erf", "Exp", "Floor"),
            *("Greater", "GreaterOrEqual", "Identity", "IsNaN", "LeakyRelu", "Less", "LessOrEqual"),
            *("Log", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu"),
            *("Reshape", "Round", "Sigmoid", "Sign", "Sqrt", "Sub", "Sum", "Tanh", "Where", "Xor"),
        ),
        "",
    ),
    "LabelEncoder": _ML,
}

_NODES = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
_MISSING = "nodes_missing_value_tracks_true"
_LEAVES = ("treeids", "nodeids", "ids", "weights")
_KEPT = {*(f"nodes_{name}" for name in _NODES), *(f"target_{name}" for name in _LEAVES)}
_WITHOUT_EFFECT = {"nodes_hitrates", "n_targets", _MISSING, "aggregate_function", "post_transform"}

# float32 holds integers below exactly.
_EXACT = 1 << 24


def fold_tree_ensembles(model: ir.Model) -> None:
    """Rewrites the main graph in place."""
    graph = model.graph
    if sum(_is_plain(node) for node in graph) < 2:
        return
    ir.passes.common.CommonSubexpressionEliminationPass()(model)
    for node in [node for node in graph if _is_plain(node) and len(_trees(node)) == 1]:
        _fold_behind(node, model)
    joined = True
    while joined:
        joined = any([_join(node) for node in list(graph) if node.op_type in _JOINING])
    ir.passes.common.RemoveUnusedNodesPass()(model)


def _values(node: ir.Node, name: str) -> list[Any]:
    given = node.attributes.get(name)
    return [] if given is None else list(given.value)


def _trees(node: ir.Node) -> set[int]:
    return set(_values(node, "nodes_treeids"))


def _is_plain(node: ir.Node) -> bool:
    """Whether it adds up the leaves of trees, of one target and in float32, and does no more."""
    if (node.domain, node.op_type) != (_ML, "TreeEnsembleRegressor"):
        return False
    if not (_KEPT <= set(node.attributes) <= _KEPT | _WITHOUT_EFFECT):
        return False
    text = {name: node.attributes.get(name) for name in ("aggregate_function", "post_transform")}
    how = "SUM" if text["aggregate_function"] is None else text["aggregate_function"].value
    post = "NONE" if text["post_transform"] is None else text["post_transform"].value
    targets = node.attributes.get("n_targets")
    one = targets is None or targets.value == 1
    return one and post == "NONE" and (how == "SUM" or len(_trees(node)) == 1)


def _fold_behind(tree: ir.Node, model: ir.Model) -> None:
    """One value that is made of the tree's alone becomes the result of another tree."""
    region = _region(tree)
    inside = {output for node in region for output in node.outputs}
    (leaf,) = tree.outputs
    read = [value for value in (leaf, *inside) if _is_read(value, region)]
    if len(read) != 1 or read[0] is leaf:
        return
    rows, place = _leaf_rows(tree)
    found = _evaluated(region, leaf, read[0], rows, model)
    if found is None or found.shape[0] != len(rows) or found.size != len(rows):
        return
    weights = found.reshape(-1)[: len(rows) - 2]
    if found.ndim > 2 or not _is_exact(weights):
        return
    leaves = [float(weights[place[node]]) for node in _values(tree, "target_nodeids")]
    tables = {name: attribute.value for name, attribute in tree.attributes.items()}
    made = _ensemble(f"{tree.name}/leaves", tree.inputs, {**tables, "target_weights": leaves})
    last = read[0].producer()
    if last is None or last.graph is None:
        return
    last.graph.insert_before(last, made)
    value, insert = made.outputs[0], Inserter(last, str(made.name))
    if found.dtype != np.float32:
        value = insert.node("Cast", [value], to=int(ir.DataType.from_numpy(found.dtype)))
    if found.ndim == 1:
        value = insert.node("Reshape", [value, insert.constant(np.array([-1]))])
    replace_outputs(last, [value])


def _region(tree: ir.Node) -> list[ir.Node]:
    """The nodes behind whose rows are functions of the tree's, each after what it reads."""
    known, found = set(tree.outputs), list[ir.Node]()
    waiting = list(tree.outputs[0].consumers())
    while waiting:
        node = waiting.pop()
        given = [value for value in node.inputs if value is not None]
        if node in found or _BY_ROWS.get(node.op_type) != node.domain:
            continue
        if all(value in known or constant_of(value) is not None for value in given):
            found.append(node)
            known.update(node.outputs)
            waiting += [reader for output in node.outputs for reader in output.consumers()]
    return found


def _is_read(value: ir.Value, region: Sequence[ir.Node]) -> bool:
    """Whether a node outside of the region, or a user, reads it."""
    return value.is_graph_output() or not set(value.consumers()) <= set(region)


def _leaf_rows(tree: ir.Node) -> tuple[np.ndarray, dict[int, int]]:
    """float32[leaves + 2, 1], and the row of each leaf's node; of a leaf the first weight counts.

    Two rows more than leaves, so that no constant has as many rows.
    """
    first: dict[int, float] = {}
    pairs = zip(_values(tree, "target_nodeids"), _values(tree, "target_weights"), strict=True)
    for node, weight in pairs:
        first.setdefault(node, weight)
    weights = list(first.values())
    rows = np.array([*weights, weights[0], weights[0]], np.float32).reshape(-1, 1)
    return rows, {node: place for place, node in enumerate(first)}


def _evaluated(
    region: Sequence[ir.Node], leaf: ir.Value, wanted: ir.Value, rows: np.ndarray, model: ir.Model
) -> np.ndarray | None:
    """What the region makes of ``rows``; None where it is no function of each row."""
    constants: dict[str, np.ndarray] = {}
    for value in (value for node in region for value in node.inputs):
        array = constant_of(value)
        if value is not None and array is not None:
            constants[str(value.name)] = array
    if any(array.ndim > 1 and array.shape[0] > 1 for array in constants.values()):
        return None
    outputs = [str(output.name) for node in region for output in node.outputs]
    graph = onnx.helper.make_graph(
        [ir.to_proto(node) for node in region],
        "leaves",
        [onnx.ValueInfoProto(name=name) for name in (str(leaf.name), *constants)],
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )
    imports = [onnx.helper.make_opsetid(*pair) for pair in model.opset_imports.items()]
    evaluator = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=imports))
    found = dict(
        zip(outputs, evaluator.run(None, {str(leaf.name): rows, **constants}), strict=True)
    )
    if any(array.ndim == 0 or array.shape[0] != len(rows) for array in found.values()):
        return None
    return np.asarray(found[str(wanted.name)])


def _is_exact(weights: np.ndarray) -> bool:
    """Whether leaves in float32 can hold them."""
    if weights.dtype == np.float32 or weights.dtype == np.bool_:
        return True
    return weights.dtype.kind in "iu" and bool((np.abs(weights) < _EXACT).all())


def _ensemble(name: str, inputs: Sequence[Any], tables: Mapping[str, Any]) -> ir.Node:
    added = ir.node("TreeEnsembleRegressor", list(inputs), dict(tables), domain=_ML, name=name)
    added.outputs[0].name = name
    added.outputs[0].dtype = ir.DataType.FLOAT
    return added


def _join(node: ir.Node) -> bool:
    """Replaces a sum or a concatenation of ensembles by one; whether it was one."""
    parts = [value.producer() if value is not None else None for value in node.inputs]
    trees = [part for part in parts if part is not None and _is_plain(part)]
    if node.domain or len(trees) < max(2, len(parts)) or len(set(trees)) < len(trees):
        return False
    alone = all(len(tree.outputs[0].uses()) == 1 for tree in trees)
    if not alone or any(tree.outputs[0].is_graph_output() for tree in trees):
        return False
    if any(tree.inputs[0] is not trees[0].inputs[0] for tree in trees) or node.graph is None:
        return False
    side_by_side = node.op_type == "Concat"
    if side_by_side and node.attributes["axis"].value not in (1, -1):
        return False
    joined = _ensemble(f"{node.name}/trees", trees[0].inputs, _joined(trees, side_by_side))
    node.graph.insert_before(node, joined)
    replace_outputs(node, joined.outputs)
    return True


_JOINING = ("Add", "Concat", "Sum")


def _joined(trees: Sequence[ir.Node], side_by_side: bool) -> dict[str, Any]:
    """The tables of all, of one target or of one each."""
    tables: dict[str, list[Any]] = {name: [] for name in (*sorted(_KEPT), _MISSING)}
    count = 0
    for target, tree in enumerate(trees):
        number = {one: count + place for place, one in enumerate(sorted(_trees(tree)))}
        count += len(number)
        for name in tables:
            values = _values(tree, name)
            if name.endswith("treeids"):
                values = [number[one] for one in values]
            elif name == "target_ids" and side_by_side:
                values = [target] * len(values)
            elif name == _MISSING and not values:
                values = [0] * len(_values(tree, "nodes_nodeids"))
            tables[name] += values
    return {**tables, "n_targets": len(trees) if side_by_side else 1}
