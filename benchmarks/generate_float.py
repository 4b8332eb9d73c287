"""A model whose products of dynamically quantised activations are done in float32."""

import numpy as np
import onnx
from onnx import helper, numpy_helper


def in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with DynamicQuantizeLinear and DequantizeLinear of what it gives left out.

    MatMulInteger(x8, w8, x0, w0), which is cast to float and multiplied with both scales, becomes
    MatMul(x, (w8 - w0) * scale). The weights are what they were.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    weights = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    made_by = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for node in list(graph.node):
        if node.op_type == "MatMulInteger":
            _in_float32(graph, node, weights, made_by, readers)
    _drop_unused(graph)
    return changed


def _in_float32(
    graph: onnx.GraphProto,
    product: onnx.NodeProto,
    weights: dict[str, np.ndarray],
    made_by: dict[str, onnx.NodeProto],
    readers: dict[str, list[onnx.NodeProto]],
) -> None:
    quantised = made_by[product.input[0]]
    (cast,) = readers[product.output[0]]
    (scaled,) = readers[cast.output[0]]
    other = next(name for name in scaled.input if name != cast.output[0])
    names = list(made_by[other].input)
    (scale,) = (name for name in names if name in weights)
    zero = weights[product.input[3]].astype(np.float32)
    wide = (weights[product.input[1]].astype(np.float32) - zero) * weights[scale]
    stored = f"{product.input[1]}_float32"
    graph.initializer.append(numpy_helper.from_array(wide.astype(np.float32), stored))
    place = list(graph.node).index(scaled)
    graph.node.remove(scaled)
    graph.node.insert(
        place, helper.make_node("MatMul", [quantised.input[0], stored], scaled.output, scaled.name)
    )


def _drop_unused(graph: onnx.GraphProto) -> None:
    wanted = {one.name for one in graph.output}
    for node in reversed(list(graph.node)):
        if wanted.isdisjoint(node.output):
            graph.node.remove(node)
        else:
            wanted.update(node.input)
    kept = [one for one in graph.initializer if one.name in wanted]
    del graph.initializer[:]
    graph.initializer.extend(kept)
