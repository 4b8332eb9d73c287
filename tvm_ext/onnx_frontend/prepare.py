"""Simplifies a model at ONNX level until TVM's importer can read it.

onnxscript's optimizer inlines model-local functions, propagates shapes and shape arithmetic and
folds constants. It was chosen over onnxslim (same coverage, but it fuses Conv and
BatchNormalization itself, which hides from a report what was folded and why) and over plain shape
inference (which leaves the arithmetic in place).
"""

from collections import Counter

import onnx
import onnx_ir as ir
from onnxscript import optimizer

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.normal_forms import to_normal_forms

# Elements of the largest tensors that constant folding may read and write: shape arithmetic and
# position tables are far below, embedding tables above.
FOLD_INPUT_LIMIT = 1 << 20
FOLD_OUTPUT_LIMIT = 1 << 22
FOLD_ROUNDS = 3


def name_nodes(graph: onnx.GraphProto) -> None:
    """Gives every unnamed node the name ``OpType_index`` so that reports can point at it."""
    taken = {node.name for node in graph.node}
    for index, node in enumerate(graph.node):
        if node.name:
            continue
        name = f"{node.op_type}_{index}"
        while name in taken:
            name += "_"
        taken.add(name)
        node.name = name


def operator_counts(graph: onnx.GraphProto) -> dict[str, int]:
    """How often each operator occurs in the graph (without subgraphs), most frequent first."""
    return dict(Counter(node.op_type for node in graph.node).most_common())


def prepare(model: onnx.ModelProto, label: str) -> onnx.ModelProto:
    """The simplified model: same inputs, outputs and values; node names survive.

    Raises
    ------
    ModelError
        The model cannot be simplified because its graph contradicts itself.
    """
    try:
        simplified = ir.serde.deserialize_model(model)
        passed_on = _take_passed_on(simplified.graph)
        optimizer.optimize_ir(
            simplified,
            num_iterations=FOLD_ROUNDS,
            input_size_limit=FOLD_INPUT_LIMIT,
            output_size_limit=FOLD_OUTPUT_LIMIT,
        )
        _restore_initializers(simplified.graph)
        for position, value in passed_on:
            simplified.graph.outputs.insert(position, value)
        to_normal_forms(simplified)
        ir.passes.common.TopologicalSortPass()(simplified)
        prepared = ir.serde.serialize_model(simplified)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ModelError(
            f"{label}: shapes and constants cannot be propagated ({reason}); "
            "expected a consistent graph: check the model with onnx.checker or give other shapes"
        ) from error
    name_nodes(prepared.graph)
    return prepared


def _take_passed_on(graph: ir.Graph) -> list[tuple[int, ir.Value]]:
    """Takes out of the outputs those that are inputs; returns them with their positions.

    The optimizer would give these inputs other names.
    """
    passed_on = [(i, value) for i, value in enumerate(graph.outputs) if value.is_graph_input()]
    for _, value in passed_on:
        graph.outputs.remove(value)
    return passed_on


def _restore_initializers(graph: ir.Graph) -> None:
    """Puts back stored values that the optimizer took for duplicates while a node reads them.

    It happens to a node that computes the same as another one when both results are outputs.
    """
    for node in graph.all_nodes():
        for value in node.inputs:
            if value is None or value.const_value is None or value.producer() is not None:
                continue
            if not (value.is_graph_input() or value.is_initializer()):
                graph.register_initializer(value)
