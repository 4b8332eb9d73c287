"""What a host operator is: a function made once from a node, called in every run."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import load_op

Compute: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""From the values of a node's inputs (None for one that is left out) to those of its outputs."""

HostOperator: TypeAlias = Callable[[dict[str, Any], int], Compute]
"""Makes the function of a node from its attributes and the operator set of its domain."""


def without_attributes(compute: Compute) -> HostOperator:
    """The operator that is this function whatever the node says."""
    return lambda attributes, opset: compute


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Attributes by name, text as ``str``."""
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {name: _decoded(value) for name, value in found.items()}


def _decoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, list | tuple) and any(isinstance(one, bytes) for one in value):
        return [_decoded(one) for one in value]
    return value


# Every other operator on the host: the ONNX project's reference implementation of it.


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
