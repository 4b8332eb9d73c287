"""Every intermediate value of a model beside ONNX Runtime's, and the first node that differs."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from tvm_ext.check.reference import run_reference
from tvm_ext.check.request import CANNOT_RUN, CheckRequest
from tvm_ext.check.result import NodeFinding, NodeValue, ValueComparison
from tvm_ext.check.tolerance import OutputDifference, compare, plain_arrays, worst
from tvm_ext.configs.progress import part_of
from tvm_ext.errors import ReferenceUnavailableError, own_words
from tvm_ext.onnx_frontend import SizedModel, read_model
from tvm_ext.onnx_frontend.submodel import (
    Submodels,
    exposable_values,
    nodes_behind,
    runtime_values,
    typed_model,
    value_precision,
)
from tvm_ext.onnx_frontend.weights import write_model

Values = Mapping[str, Any]


def compare_values(request: CheckRequest, inputs: Values) -> ValueComparison:
    """Compares all values that can be outputs, in the order of the nodes that compute them.

    The model is compiled once more, with these values as outputs: they are not fused away then, so
    a fault of a fused kernel may hide from this view.

    Raises
    ------
    TvmExtError
        The model cannot be read.
    """
    level = request.passes().opt_level
    with _exposed(request, inputs) as exposed:
        if exposed.refusal:
            return ValueComparison(level, (), exposed.refusal)
        try:
            found = exposed.differences(exposed.run(request), request.rtol)
        except CANNOT_RUN as error:
            return ValueComparison(level, (), _refusal(error, request))
    return ValueComparison(
        level,
        tuple(
            NodeValue(node.name, node.op_type, found[name])
            for node in exposed.model.graph.node
            for name in node.output
            if name in found
        ),
    )


def find_node(request: CheckRequest, inputs: Values) -> tuple[NodeFinding | None, list[str]]:
    """The first node that differs, and notes on what was tried in vain.

    Every intermediate value becomes an output, once at O0, where nothing is fused away, and then
    at the level asked for.
    """
    plain = replace(request, opt_level="O0", pipeline=None)
    requests = {one.passes().opt_level: one for one in (plain, request)}
    notes = []
    with _exposed(request, inputs) as exposed:
        if exposed.refusal:
            return None, [exposed.refusal]
        for level, one in requests.items():
            try:
                ours = exposed.run(one)
            except CANNOT_RUN as error:
                notes.append(_refusal(error, one))
                continue
            finding = _first_node(exposed, ours, level, request.rtol)
            if finding is not None:
                return finding, []
            notes.append(f"with its intermediate values exposed the model agrees at {level}")
    return None, notes


def _refusal(error: Exception, request: CheckRequest) -> str:
    reason = own_words(error) or "it cannot be compiled and run"
    return f"with its intermediate values exposed, at {request.passes().opt_level}: {reason}"


@dataclass(frozen=True)
class _Exposed:
    """A model whose intermediate values are outputs, in a file, and their reference.

    ``refusal`` says why there is none.
    """

    sized: SizedModel
    model: onnx.ModelProto
    path: Path
    inputs: Values
    reference: Values
    refusal: str = ""

    def run(self, request: CheckRequest) -> Values:
        """What the model computes, compiled as ``request`` says."""
        with part_of(f"intermediate values at {request.passes().opt_level}"):
            return replace(request, source=self.path).compile().run(self.inputs)

    def differences(self, ours: Values, rtol: float | None) -> dict[str, OutputDifference]:
        """The worst difference in each value, which may be a sequence or a map."""
        precision = value_precision(self.model.graph)
        return {
            name: worst(
                compare(
                    plain_arrays({name: ours[name]}), plain_arrays({name: value}), rtol, precision
                )
            )
            for name, value in self.reference.items()
        }


@contextmanager
def _exposed(request: CheckRequest, inputs: Values) -> Iterator[_Exposed]:
    sized = read_model(request.source, request.input_shapes)
    model = typed_model(sized)
    whole = Submodels(model, inputs, sized.stored).all(exposable_values(model.graph))
    with tempfile.TemporaryDirectory(prefix="tvm-ext-check-") as folder:
        exposed = _Exposed(sized, model, Path(folder) / "model.onnx", inputs, {})
        if whole is None:
            yield replace(exposed, refusal="the graph computes no values: it has no nodes")
            return
        try:
            write_model(whole.model, exposed.path)
            reference = run_reference(exposed.path, inputs, optimise=False)
        except ReferenceUnavailableError as error:
            yield replace(exposed, refusal=f"intermediate values cannot be compared: {error}")
        else:
            yield replace(exposed, reference=reference)


def _first_node(
    exposed: _Exposed, ours: Values, level: str, rtol: float | None
) -> NodeFinding | None:
    graph = exposed.model.graph
    found = exposed.differences(ours, rtol)
    # A value that differs and reaches no output that differs is not what was asked about.
    wrong = [value.name for value in graph.output if value.name in found]
    for place in nodes_behind(graph.node, (name for name in wrong if not found[name].ok)):
        node = graph.node[place]
        for name in node.output:
            if name in found and not found[name].ok:
                return _finding(exposed, ours, node, found, found[name], level)
    return None


def _finding(
    exposed: _Exposed,
    ours: Values,
    node: onnx.NodeProto,
    differences: Mapping[str, OutputDifference],
    difference: OutputDifference,
    level: str,
) -> NodeFinding:
    inputs = {
        name: 0.0
        if name in exposed.inputs
        else differences[name].max_rel
        if name in differences
        else None
        for name in runtime_values(exposed.model.graph, node)
    }
    own_fault = _own_fault(exposed, node, ours, difference)
    return NodeFinding(level, node.name, node.op_type, difference, inputs, own_fault)


def _own_fault(
    exposed: _Exposed, node: onnx.NodeProto, ours: Values, difference: OutputDifference
) -> bool | None:
    """Whether ONNX Runtime computes something else from the very inputs that our node had."""
    known = {**ours, **exposed.inputs}
    submodels = Submodels(exposed.model, known, exposed.sized.stored, frozen=True)
    alone = submodels.of([submodels.nodes.index(node)])
    if alone is None:
        return None
    try:
        theirs = run_reference(alone.model, alone.inputs, optimise=False)
    except ReferenceUnavailableError:
        return None
    name = difference.name
    if name not in theirs:
        return None
    tolerance = difference.tolerance or None
    return not compare({name: ours[name]}, {name: theirs[name]}, tolerance)[0].ok
