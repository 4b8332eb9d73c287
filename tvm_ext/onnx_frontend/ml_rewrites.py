"""Rewrites around operators of ai.onnx.ml: labels of strings, exact inputs of trees."""

import onnx_ir as ir

_LABELS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
_STRINGS = "classlabels_strings"


def number_string_labels(model: ir.Model) -> None:
    """Changes such classifiers in place: a LabelEncoder from numbers to strings follows each."""
    for node in list(model.graph.all_nodes()):
        if node.domain != "ai.onnx.ml" or node.op_type not in _LABELS or node.graph is None:
            continue
        strings = node.attributes.get(_STRINGS)
        if strings is None or not strings.as_strings():
            continue
        labels = list(strings.as_strings())
        numbers = list(range(len(labels)))
        del node.attributes[_STRINGS]
        name = _LABELS[node.op_type]
        node.attributes[name] = ir.AttrInt64s(name, numbers)
        _look_up(node, numbers, labels)


def _look_up(node: ir.Node, numbers: list[int], labels: list[str]) -> None:
    output = node.outputs[0]
    attributes = {"keys_int64s": numbers, "values_strings": labels}
    encoder = ir.node(
        "LabelEncoder", [output], attributes, domain="ai.onnx.ml", name=f"{node.name}/labels"
    )
    texts = encoder.outputs[0]
    texts.type, texts.shape = ir.TensorType(ir.DataType.STRING), output.shape
    output.replace_all_uses_with(texts, replace_graph_outputs=True)
    encoder.replace_input_with(0, output)
    texts.name, output.name = output.name, f"{output.name}/number"
    output.type = ir.TensorType(ir.DataType.INT64)
    node.graph.insert_after(node, encoder)


# Products in front of tree ensembles are rounded before anything is added to them.
#
# Compiled code multiplies and adds in one instruction, which rounds once. Trees of XGBoost
# compare with values of the training data themselves: one unit in the last place of a scaled
# column takes other branches.


_ML = "ai.onnx.ml"

ROUNDED = "tvm_ext.rounded"
"""The domain of operators whose results are rounded to their type, whatever reads them."""

_SUMS = ("Add", "Sub", "Sum")

# What hands on numbers to compare, as they are or computed one by one.
_PASSED_ON = {
    *("Abs", "Cast", "Clip", "Concat", "Div", "Expand", "Flatten", "Gather", "Identity", "Max"),
    *("Min", "Mul", "Neg", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"),
    *("Where", "ArrayFeatureExtractor", "FeatureVectorizer", "Imputer", "Scaler", *_SUMS),
}


def keep_tree_inputs_exact(model: ir.Model) -> None:
    """Gives such products of the main graph the domain ``ROUNDED``, in place."""
    waiting = [
        value
        for node in model.graph
        if node.domain == _ML and node.op_type.startswith("TreeEnsemble")
        for value in node.inputs
    ]
    seen: set[ir.Node] = set()
    while waiting:
        value = waiting.pop()
        node = value.producer() if value is not None else None
        if node is None or node in seen or node.op_type not in _PASSED_ON:
            continue
        seen.add(node)
        waiting += node.inputs
        if node.op_type == "Mul" and node.domain == "" and _is_added(node):
            node.domain = ROUNDED
            model.opset_imports[ROUNDED] = 1


def _is_added(node: ir.Node) -> bool:
    (product,) = node.outputs
    if product.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return False
    return any(reader.op_type in _SUMS for reader in product.consumers())
