"""Finds the first ONNX node that a compiled model computes otherwise than ONNX Runtime."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from tvm_ext.check.cuts import CANNOT_RUN, SteppedCompilation
from tvm_ext.check.findings import NodeFinding
from tvm_ext.check.reference import run_reference
from tvm_ext.check.request import CheckRequest
from tvm_ext.check.tolerance import OutputDifference, compare
from tvm_ext.errors import ReferenceUnavailableError, own_words
from tvm_ext.onnx_frontend import import_prepared
from tvm_ext.onnx_frontend.expose import (
    expose_intermediates,
    node_alone,
    nodes_behind,
    runtime_values,
    value_precision,
    with_types,
)

Arrays = Mapping[str, np.ndarray]


def find_node(
    request: CheckRequest, name: str, prepared: onnx.ModelProto, inputs: Arrays
) -> tuple[NodeFinding | None, list[str]]:
    """The first node that differs, and notes on what was tried in vain.

    Every intermediate value becomes an output, once at O0, where nothing is fused away, and then
    at the level asked for. Values that are outputs are not fused, so a fault of a fused kernel may
    hide from this view.
    """
    exposed = expose_intermediates(with_types(prepared))
    try:
        reference = run_reference(exposed, inputs, optimise=False)
    except ReferenceUnavailableError as error:
        return None, [f"intermediate values cannot be compared: {error}"]
    view = _Exposed(exposed, [v.name for v in prepared.graph.output], inputs, reference)
    notes = []
    for level in dict.fromkeys(["O0", request.pipeline().opt_level]):
        try:
            pipeline = request.pipeline(level)
            imported = import_prepared(name, prepared, exposed)
            ours = SteppedCompilation(imported, request.machine, pipeline).program().run(inputs)
        except CANNOT_RUN as error:
            reason = own_words(error) or "it cannot be compiled and run"
            notes.append(f"with its intermediate values exposed, at {level}: {reason}")
            continue
        finding = _first_node(view, ours, level, request.rtol)
        if finding is not None:
            return finding, []
        notes.append(f"with its intermediate values exposed the model agrees at {level}")
    return None, notes


@dataclass(frozen=True)
class _Exposed:
    """A model whose intermediate values are outputs, and their reference."""

    model: onnx.ModelProto
    outputs: list[str]
    inputs: Arrays
    reference: Arrays


def _first_node(view: _Exposed, ours: Arrays, level: str, rtol: float | None) -> NodeFinding | None:
    graph = view.model.graph
    precision = value_precision(graph)
    found = {d.name: d for d in compare(ours, view.reference, rtol, precision)}
    # A value that differs and reaches no output that differs is not what was asked about.
    wrong = [name for name in view.outputs if not found[name].ok]
    for node in nodes_behind(graph, wrong):
        for name in node.output:
            if name in found and not found[name].ok:
                return _finding(view, ours, node, found, found[name], level)
    return None


def _finding(
    view: _Exposed,
    ours: Arrays,
    node: onnx.NodeProto,
    found: Mapping[str, OutputDifference],
    difference: OutputDifference,
    level: str,
) -> NodeFinding:
    read = runtime_values(view.model.graph, node)
    inputs = {
        name: 0.0 if name in view.inputs else found[name].max_rel if name in found else None
        for name in read
    }
    fed = {**{name: ours[name] for name in read if name in ours}, **_chosen(view.inputs, read)}
    own_fault = None
    if len(fed) == len(read):
        own_fault = _own_fault(view.model, node, fed, ours, difference)
    return NodeFinding(level, node.name, node.op_type, difference, inputs, own_fault)


def _chosen(arrays: Arrays, names: list[str]) -> dict[str, np.ndarray]:
    return {name: arrays[name] for name in names if name in arrays}


def _own_fault(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    fed: Arrays,
    ours: Arrays,
    difference: OutputDifference,
) -> bool | None:
    """Whether ONNX Runtime computes something else from the very inputs that our node had."""
    try:
        theirs = run_reference(node_alone(model, node, fed), fed, optimise=False)
    except ReferenceUnavailableError:
        return None
    name = difference.name
    if name not in theirs:
        return None
    tolerance = difference.tolerance or None
    return not compare({name: ours[name]}, {name: theirs[name]}, tolerance)[0].ok
