"""Writes nodes of the default domain in place of one node of com.microsoft."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from tvm_ext.configs.errors import FormError, NotApplicable
from tvm_ext.onnx_frontend.ir_edits import constant_of

# The end of a slice that goes to the end of its axis.
FAR = int(np.iinfo(np.int64).max)


class Builder:
    """New nodes, in the order of their making, with names that begin with the old node's.

    Attributes
    ----------
    node : onnx_ir.Node
        The node to replace.
    opset : int
        Version of the default domain that the new nodes follow.
    dtype : onnx_ir.DataType or None
        Type of the floating-point numbers that the node takes; None where it is not known.
    """

    def __init__(self, node: ir.Node, opset: int, dtype: ir.DataType | None) -> None:
        self.node = node
        self.opset = opset
        self.dtype = dtype
        self.nodes: list[ir.Node] = []
        self._prefix = node.name or node.op_type

    def input(self, index: int) -> ir.Value:
        """An input that the node must have."""
        value = self.optional(index)
        if value is None:
            raise NotApplicable(f"input {index} is missing")
        return value

    def optional(self, index: int) -> ir.Value | None:
        """An input that may be left out."""
        return self.node.inputs[index] if len(self.node.inputs) > index else None

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute: a number, a text, or a list of them."""
        given = self.node.attributes.get(name)
        return default if given is None else given.value

    def required(self, name: str) -> Any:
        """The value of an attribute that the node must have, else a FormError."""
        value = self.attribute(name)
        if value is None:
            raise FormError(f"it has no attribute '{name}', expected one")
        return value

    def op(self, name: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """The first result of a new node; attributes that are None are left out.

        ``domain`` is that of the operator, where it is not the default one.
        """
        return self.ops(name, 1, inputs, attributes)[0]

    def ops(
        self, name: str, outputs: int, inputs: Sequence[ir.Value | None], attributes: dict[str, Any]
    ) -> Sequence[ir.Value]:
        """All results of a new node."""
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        given = {key: value for key, value in attributes.items() if value is not None}
        domain = given.pop("domain", "")
        named = self._name(name)
        added = ir.node(name, inputs, given, domain=domain, num_outputs=outputs, name=named)
        for index, value in enumerate(added.outputs):
            value.name = f"{added.name}/{index}"
        self.nodes.append(added)
        return added.outputs

    def constant(self, array: np.ndarray) -> ir.Value:
        """A stored tensor."""
        return self.op("Constant", value=ir.tensor(np.asarray(array)))

    def number(self, value: float) -> ir.Value:
        """A scalar of the type that the node computes in."""
        if self.dtype is None:
            raise NotApplicable("the type of its input is not known")
        return self.constant(np.array(value, self.dtype.numpy()))

    def float32(self, value: float) -> ir.Value:
        """A scalar of float32, whatever the node computes in."""
        return self.constant(np.array(value, np.float32))

    def sliced(self, value: ir.Value, first: int, end: int, axis: int = 0) -> ir.Value:
        """The elements of one axis from ``first`` to ``end``, which ``FAR`` leaves open."""
        bounds = (self.constant(np.array([bound], np.int64)) for bound in (first, end, axis))
        return self.op("Slice", value, *bounds)

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """``value`` in another type."""
        return self.op("Cast", value, to=int(dtype))

    def mean(self, value: ir.Value, *axes: int) -> ir.Value:
        """Over some axes, which stay with size 1."""
        if self.opset < 18:
            return self.op("ReduceMean", value, axes=list(axes), keepdims=1)
        return self.op("ReduceMean", value, self.constant(np.array(axes)), keepdims=1)

    def total(self, value: ir.Value, axis: int) -> ir.Value:
        """The sum over one axis, which goes away."""
        if self.opset < 13:
            return self.op("ReduceSum", value, axes=[axis], keepdims=0)
        return self.op("ReduceSum", value, self.constant(np.array([axis])), keepdims=0)

    def unsqueezed(self, value: ir.Value, *axes: int) -> ir.Value:
        """With axes of size 1 at these places of the result."""
        if self.opset < 13:
            return self.op("Unsqueeze", value, axes=list(axes))
        return self.op("Unsqueeze", value, self.constant(np.array(axes)))

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """The size of an axis in the run, a scalar."""
        return self.op("Gather", self.op("Shape", value), self.constant(np.array(axis)), axis=0)

    def counted(self, count: ir.Value) -> ir.Value:
        """The numbers from 0 below ``count``."""
        return self.op("Range", self.constant(np.array(0)), count, self.constant(np.array(1)))

    def transposed(self, value: ir.Value) -> ir.Value:
        """With the last two axes exchanged."""
        if value.shape is None:
            raise NotApplicable("the rank of its input is not known")
        axes = list(range(len(value.shape)))
        axes[-2:] = axes[:-3:-1]
        return self.op("Transpose", value, perm=axes)

    def inside(self, name: str) -> "Builder":
        """A builder of the nodes of a body, which may read all values made so far."""
        inner = Builder(self.node, self.opset, self.dtype)
        inner._prefix = self._name(name)
        return inner

    def argument(self, name: str, dtype: ir.DataType) -> ir.Value:
        """An input of the body that this builder is for."""
        return ir.Value(name=f"{self._prefix}/{name}", type=ir.TensorType(dtype))

    def graph(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> ir.Graph:
        """The body of the nodes made so far."""
        return ir.Graph(inputs, outputs, nodes=self.nodes, name=self._prefix)

    def used(self, output: int) -> bool:
        """Whether anything reads an output of the node."""
        if len(self.node.outputs) <= output or not self.node.outputs[output].name:
            return False
        value = self.node.outputs[output]
        return bool(value.uses()) or value.is_graph_output()

    def _name(self, name: str) -> str:
        return f"{self._prefix}/{name}_{len(self.nodes)}"


def type_of(value: ir.Value) -> ir.DataType:
    """The type of a value; NotApplicable where it is not known."""
    if value.dtype is None:
        raise NotApplicable("the type of its input is not known")
    return value.dtype


def stored(*values: ir.Value | None) -> list[np.ndarray | None] | None:
    """The arrays of stored tensors, None for inputs left out; None when one is computed."""
    arrays = [None if value is None else _array(value) for value in values]
    if any(
        array is None and value is not None for array, value in zip(arrays, values, strict=True)
    ):
        return None
    return arrays


def _array(value: ir.Value) -> np.ndarray | None:
    """The numbers of a stored tensor, or of one reshaped, as two operators share weights."""
    node = value.producer()
    if node is None or node.domain or node.op_type != "Reshape":
        return constant_of(value)
    given = stored(*node.inputs)
    if given is None or given[0] is None or len(given) < 2 or given[1] is None:
        return None
    data, sizes = given[0], [int(size) for size in given[1]]
    if "allowzero" not in node.attributes or not node.attributes["allowzero"].value:
        # 0 is the size that the axis has.
        sizes = [size or data.shape[axis] for axis, size in enumerate(sizes)]
    return data.reshape(sizes)
