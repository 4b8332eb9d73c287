"""Every other operator on the host: the ONNX project's reference implementation of it."""

from collections.abc import Sequence
from typing import Any

import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import load_op

from tvm_ext.onnx_frontend.host.operators.operator import Compute


def has_reference(node: onnx.NodeProto, opsets: dict[str, int]) -> bool:
    """Whether the onnx package computes the operator."""
    try:
        load_op(node.domain, node.op_type, opsets.get(node.domain, 1))
    except (NotImplementedError, RuntimeError, ValueError):
        return False
    return True


def by_reference(node: onnx.NodeProto, opsets: dict[str, int]) -> Compute:
    """The function of a node without graphs in its attributes."""
    names = [f"i{place}" if name else "" for place, name in enumerate(node.input)]
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    del alone.input[:]
    alone.input.extend(names)
    graph = onnx.helper.make_graph(
        [alone],
        "host",
        [onnx.ValueInfoProto(name=name) for name in names if name],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
    )
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    evaluator = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=imports))
    positions = [place for place, name in enumerate(node.output) if name]

    def compute(given: Sequence[Any]) -> list[Any]:
        feeds = {name: value for name, value in zip(names, given, strict=True) if name}
        found = evaluator.run(None, feeds)
        results = [None] * len(node.output)
        for place, value in zip(positions, found, strict=True):
            results[place] = value
        return results

    return compute
