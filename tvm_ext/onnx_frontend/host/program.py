"""A model as steps in order: host operators, and calls of compiled parts.

The steps are kept as an ONNX graph, in which a call of a part is a node of a domain of ours. So a
saved model holds them as an ONNX file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from tvm_ext.errors import RunError, TvmExtError, own_words
from tvm_ext.onnx_frontend.host.operators import HOST_OPERATORS
from tvm_ext.onnx_frontend.host.operators.operator import Compute, attributes_of, by_reference
from tvm_ext.onnx_frontend.onnx_graph import DEFAULT_DOMAINS, operator_key
from tvm_ext.tensor_spec import listed

PART_DOMAIN = "tvm_ext.parts"

HostSteps: TypeAlias = onnx.ModelProto
"""An ONNX model of host nodes and calls of parts."""


def read_host_steps(content: bytes) -> HostSteps:
    """The steps as a saved model holds them."""
    return onnx.ModelProto.FromString(content)


Values: TypeAlias = dict[str, Any]
Part: TypeAlias = Callable[[Sequence[str], Sequence[str]], Compute]
"""A compiled part as a function from the values of these inputs to those of these outputs."""

_Apply: TypeAlias = Callable[[Values], Sequence[Any]]


def part_call(
    index: int, inputs: Sequence[str], outputs: Sequence[str], name: str
) -> onnx.NodeProto:
    """The node that calls a part."""
    node = onnx.helper.make_node("Part", list(inputs), list(outputs), name, domain=PART_DOMAIN)
    node.attribute.append(onnx.helper.make_attribute("index", index))
    return node


@dataclass(frozen=True)
class HostStep:
    """One step of a program.

    Attributes
    ----------
    operator, name : str
        The ONNX operator with its domain, and the node.
    part : int or None
        Which compiled part it calls.
    inputs, outputs : tuple[str, ...]
        Names of values; empty for one that is left out.
    apply : callable
        From all values so far to those of ``outputs``.
    kept : tuple[tuple[int, str], ...]
        Places and names of the outputs that have one.
    """

    operator: str
    name: str
    part: int | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    apply: _Apply
    kept: tuple[tuple[int, str], ...]

    def failure(self, error: Exception, values: Values) -> RunError:
        """What to raise where the operator refuses its values."""
        given = [described(values[name]) for name in self.inputs if name in values]
        words = own_words(error) or f"its inputs are {listed(given) or 'none'}"
        return RunError(
            f"{self.operator} node '{self.name}' failed on the host ({words}); expected values "
            "that the operator allows: check the inputs"
        )


def described(value: Any) -> str:
    """A value of a run in words: its type and its size."""
    if value is None:
        return "an empty optional"
    if isinstance(value, list):
        return f"a sequence of {len(value)}"
    if isinstance(value, dict):
        return f"a map of {len(value)}"
    array = np.asarray(value)
    dtype = array.dtype.name if array.dtype.kind not in "OUST" else "string"
    return f"{dtype}{list(array.shape)}"


class HostProgram:
    """The steps of a graph, bodies of If and Loop included, ready to run.

    Parameters
    ----------
    graph : onnx.GraphProto
        Host nodes and calls of parts, in order.
    opsets : mapping of domain to version
        Of the model.
    parts : sequence of callables
        The compiled parts.
    is_body : bool
        Whether a run of the model may run the graph more than once.
    """

    def __init__(
        self,
        graph: onnx.GraphProto,
        opsets: Mapping[str, int],
        parts: Sequence[Part],
        is_body: bool = False,
    ) -> None:
        self.inputs = tuple(value.name for value in graph.input)
        self.outputs = tuple(value.name for value in graph.output)
        self.types = {value.name: value.type for value in (*graph.input, *graph.output)}
        self._constants = {tensor.name: _array(tensor) for tensor in graph.initializer}
        self._opsets = dict(opsets)
        self._parts = parts
        self._is_body = is_body
        self.steps = tuple(self._step(node) for node in graph.node)

    def run(
        self, given: Mapping[str, Any], observe: Callable[[HostStep], Any] | None = None
    ) -> Values:
        """All values of one run, outputs included; ``given`` holds the inputs.

        ``observe`` is told of each step ahead of it. Raises RunError where an operator refuses its
        values.
        """
        values = {**given, **self._constants}
        for step in self.steps:
            if observe is not None:
                observe(step)
            try:
                results = step.apply(values)
            except TvmExtError:
                raise
            except Exception as error:
                raise step.failure(error, values) from error
            for place, name in step.kept:
                values[name] = results[place]
        return values

    def results(self, given: Mapping[str, Any]) -> list[Any]:
        """The outputs of one run, in order."""
        values = self.run(given)
        return [values[name] for name in self.outputs]

    def _step(self, node: onnx.NodeProto) -> HostStep:
        part, apply = None, self._apply(node)
        if node.domain == PART_DOMAIN:
            part = int(node.attribute[0].i)
        key = operator_key(node)
        kept = tuple((place, name) for place, name in enumerate(node.output) if name)
        return HostStep(key, node.name, part, tuple(node.input), tuple(node.output), apply, kept)

    def _apply(self, node: onnx.NodeProto) -> _Apply:
        inputs = tuple(node.input)
        if node.domain == PART_DOMAIN:
            compute = self._parts[node.attribute[0].i](inputs, tuple(node.output))
            compute = _with_copies(compute) if self._is_body else compute
        elif node.domain in DEFAULT_DOMAINS and node.op_type in CONTROL_FLOW:
            bodies = {
                attribute.name: HostProgram(attribute.g, self._opsets, self._parts, is_body=True)
                for attribute in node.attribute
                if attribute.type == onnx.AttributeProto.GRAPH
            }
            control = CONTROL_FLOW[node.op_type]
            return lambda values: control(bodies, [_value(values, name) for name in inputs], values)
        else:
            compute = self._operator(node)
        if len(inputs) == 1 and inputs[0]:
            (only,) = inputs
            return lambda values: compute((values[only],))
        return lambda values: compute([_value(values, name) for name in inputs])

    def _operator(self, node: onnx.NodeProto) -> Compute:
        operator = HOST_OPERATORS.get(operator_key(node))
        if operator is None:
            return by_reference(node, self._opsets)
        domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
        return operator(attributes_of(node), self._opsets.get(domain, 1))


def _value(values: Values, name: str) -> Any:
    return values[name] if name else None


def _array(tensor: onnx.TensorProto) -> np.ndarray:
    array = numpy_helper.to_array(tensor)
    return array.astype(object) if array.dtype.kind == "U" else array


def _with_copies(compute: Compute) -> Compute:
    """A part whose next call in the same run does not change what this one returns."""
    return lambda values: [np.array(result) for result in compute(values)]


def _if(bodies: Mapping[str, HostProgram], given: Sequence[Any], around: Values) -> list[Any]:
    chosen = "then_branch" if np.asarray(given[0]).all() else "else_branch"
    return bodies[chosen].results(around)


def _loop(bodies: Mapping[str, HostProgram], given: Sequence[Any], around: Values) -> list[Any]:
    body = bodies["body"]
    # Exporters write an array of one element as well.
    limit = None if given[0] is None else int(np.asarray(given[0]).item())
    going = len(given) < 2 or given[1] is None or bool(np.asarray(given[1]).all())
    carried = list(given[2:])
    scans: list[list[Any]] = [[] for _ in body.outputs[1 + len(carried) :]]
    step = 0
    while going and (limit is None or step < limit):
        formals = [*_counters(body, step), *carried]
        condition, *results = body.results(around | dict(zip(body.inputs, formals, strict=True)))
        carried = results[: len(carried)]
        for rows, row in zip(scans, results[len(carried) :], strict=True):
            rows.append(row)
        going, step = bool(np.asarray(condition).all()), step + 1
    names = body.outputs[1 + len(carried) :]
    stacked = [_stacked(rows, body.types[n]) for rows, n in zip(scans, names, strict=True)]
    return [*carried, *stacked]


def _counters(body: HostProgram, step: int) -> list[np.ndarray]:
    """The number of the iteration and its condition, with the axes that the body declares."""
    values = (np.array(step, np.int64), np.array(True))
    tensors = [body.types[name].tensor_type for name in body.inputs[:2]]
    return [v.reshape([1] * len(t.shape.dim)) for v, t in zip(values, tensors, strict=True)]


def _stacked(rows: list[Any], type_: onnx.TypeProto) -> np.ndarray:
    """What the iterations gave, along a new first axis; of the declared type where none ran."""
    if rows:
        return np.stack(rows)
    tensor = type_.tensor_type
    sizes = [max(dim.dim_value, 0) for dim in tensor.shape.dim]
    return np.zeros((0, *sizes), onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))


# Their bodies are programs themselves.
CONTROL_FLOW = {"If": _if, "Loop": _loop}
