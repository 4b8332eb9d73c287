"""Loops that append to a sequence, as Loops with a scan output: a sequence has no length in TVM."""

from collections.abc import Container

import numpy as np
import onnx_ir as ir

from tvm_ext.onnx_frontend.ir_edits import Inserter, replace_outputs


def appending_loops_to_scans(model: ir.Model) -> bool:
    """Rewrites every such Loop in place; whether there was one.

    Before: ``q = Loop(n, c, SequenceEmpty())``, whose body ends in ``SequenceInsert(q, x)``
    After:  ``xs = Loop(n, c)``, whose body gives ``x``; ``q = SplitToSequence(xs)``

    A sequence that is only concatenated, of elements that differ in size along that axis, becomes
    a tensor that grows instead. Other sequences, whose elements need not be alike, stay.
    """
    found = [n for n in model.graph.all_nodes() if n.op_type == "Loop" and n.domain == ""]
    # A sequence has the shape of its elements, each of which may have sizes of its own.
    tensors = [value for value in model.graph.inputs if isinstance(value.type, ir.TensorType)]
    sizes = (size for value in tensors for size in value.shape or ())
    fixed = {size for size in sizes if size != ir.SymbolicDim(None)}
    return any([_rewrite(node, fixed) for node in found])


def _rewrite(node: ir.Node, fixed: Container[int | ir.SymbolicDim]) -> bool:
    """``fixed`` are sizes that are the same in all iterations."""
    body = node.attributes["body"].as_graph()
    for index, given in enumerate(node.inputs[2:]):
        insert = _append(body, index)
        producer = given.producer() if given is not None else None
        if insert is None or producer is None or producer.op_type != "SequenceEmpty":
            continue
        growing = _growing(node, index, insert)
        if growing is not None:
            _grow(node, body, index, insert, growing)
            return True
        element = insert.inputs[1]
        if (
            element is not None
            and element.shape is not None
            and all(isinstance(size, int) or size in fixed for size in element.shape)
        ):
            _scan(node, body, index, insert)
            return True
    return False


def _append(body: ir.Graph, index: int) -> ir.Node | None:
    """The node that appends to this loop-carried value, if nothing else reads it."""
    formal, result = body.inputs[2 + index], body.outputs[1 + index]
    insert = result.producer()
    if insert is None or insert.op_type != "SequenceInsert" or insert.inputs[0] is not formal:
        return None
    at_the_end = len(insert.inputs) < 3 or insert.inputs[2] is None
    alone = len(formal.uses()) == 1 and not formal.is_graph_output() and not result.uses()
    once = sum(output is result for output in body.outputs) == 1
    return insert if at_the_end and alone and once else None


def _growing(node: ir.Node, index: int, insert: ir.Node) -> int | None:
    """The axis along which elements that may differ in size there are joined."""
    readers = [use.node for use in node.outputs[index].uses()]
    element = insert.inputs[1]
    if element is None or not element.shape or element.dtype is None or not readers:
        return None
    axis, *others = {_joined_axis(reader) for reader in readers}
    if axis is None or others:
        return None
    axis %= len(element.shape)
    return None if isinstance(element.shape[axis], int) else axis


def _joined_axis(reader: ir.Node) -> int | None:
    """The axis of a ConcatFromSequence along an axis that the elements have."""
    if reader.op_type != "ConcatFromSequence":
        return None
    new_axis = reader.attributes.get("new_axis")
    return (
        None if new_axis is not None and new_axis.as_int() else reader.attributes["axis"].as_int()
    )


def _grow(node: ir.Node, body: ir.Graph, index: int, insert: ir.Node, axis: int) -> None:
    """Carries what is joined so far: the element itself at first, whose other sizes it has."""
    element, formal, result = insert.inputs[1], body.inputs[2 + index], node.outputs[index]
    nothing = np.zeros([0] * len(element.shape), element.dtype.numpy())
    node.replace_input_with(2 + index, Inserter(node, f"{node.name}/nothing").constant(nothing))
    inserter = Inserter(insert, f"{insert.name}/joined")
    first = inserter.node("Equal", [body.inputs[0], inserter.constant(np.array(0, np.int64))])
    sides = {
        "then_branch": _side(body, f"{insert.name}/first", "Identity", [element]),
        "else_branch": _side(body, f"{insert.name}/next", "Concat", [formal, element], axis=axis),
    }
    joined = inserter.node("If", [first], **sides)
    for value in (formal, joined, result):
        value.type, value.shape = ir.TensorType(element.dtype), None
    body.outputs[1 + index] = joined
    insert.graph.remove(insert, safe=True)
    for reader in [use.node for use in result.uses()]:
        replace_outputs(reader, [_copied(reader, result)])


def _side(
    body: ir.Graph, name: str, operator: str, inputs: list[ir.Value], **attributes: int
) -> ir.Graph:
    """A branch of one node."""
    node = ir.node(operator, inputs, attributes, name=name)
    node.outputs[0].name, node.outputs[0].type = name, ir.TensorType(inputs[-1].dtype)
    return ir.Graph([], node.outputs, nodes=[node], opset_imports=body.opset_imports, name=name)


def _copied(reader: ir.Node, value: ir.Value) -> ir.Value:
    copy = Inserter(reader, f"{reader.name}/value").node("Identity", [value])
    copy.type = value.type
    return copy


def _scan(node: ir.Node, body: ir.Graph, index: int, insert: ir.Node) -> None:
    """Gives each element as a part of a scan output, which is split into a sequence again."""
    element = insert.inputs[1]
    inserter = Inserter(insert, f"{insert.name}/element")
    part = inserter.node("Identity", [element])
    part.type, part.shape = element.type, element.shape
    body.outputs.pop(1 + index)
    body.outputs.append(part)
    insert.graph.remove(insert, safe=True)
    body.inputs.pop(2 + index)
    given = [value for place, value in enumerate(node.inputs) if place != 2 + index]
    del node.attributes["body"]
    loop = ir.node("Loop", given, {"body": body}, num_outputs=len(node.outputs), name=node.name)
    kept = [output for place, output in enumerate(node.outputs) if place != index]
    for made, old in zip(loop.outputs, kept, strict=False):
        made.name, made.type, made.shape = f"{old.name}/scanning", old.type, old.shape
    stacked = loop.outputs[-1]
    stacked.name = f"{node.outputs[index].name}/stacked"
    stacked.type = ir.TensorType(element.dtype) if element.dtype is not None else None
    if element.shape is not None:
        sizes = [size if isinstance(size, int) else None for size in element.shape]
        stacked.shape = ir.Shape([None, *sizes])
    after = Inserter(node, f"{node.name}/sequence")
    after.graph.insert_before(node, loop)
    sequence = after.node("SplitToSequence", [stacked], axis=0, keepdims=0)
    sequence.type = node.outputs[index].type
    results = list(loop.outputs[:-1])
    results.insert(index, sequence)
    replace_outputs(node, results)
