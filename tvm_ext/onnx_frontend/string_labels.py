"""Classifiers with labels of strings give the label's number, which the host looks up behind them.

So the classifier itself is compiled. ONNX Runtime numbers the labels in the same way.
"""

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
