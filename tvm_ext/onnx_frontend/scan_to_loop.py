"""Scan as a Loop over the elements of its scan inputs."""

import numpy as np
import onnx_ir as ir

from tvm_ext.errors import FormError, ModelError
from tvm_ext.onnx_frontend.ir_edits import Inserter, replace_outputs

_BACKWARD = 1


def scans_to_loops(model: ir.Model) -> bool:
    """Rewrites every Scan (opset 9 and later) in place; whether there was one.

    Before: ``y, ys = Scan(s, xs)``, where the body is given ``xs[t]``
    After:  ``y, ys = Loop(shape(xs)[0], s)``, where the body reads ``xs[t]`` from outside

    Scanned axes and directions become those of a Gather in the body, and a Transpose and a
    reversing Slice of the outputs.

    Raises
    ------
    ModelError
        The rank of an output that is stacked along another axis is unknown.
    """
    found = [n for n in model.graph.all_nodes() if n.op_type == "Scan" and n.domain == ""]
    for node in found:
        _rewrite(node)
    return bool(found)


def _rewrite(node: ir.Node) -> None:
    body = node.attributes["body"].as_graph()
    scanned = node.attributes["num_scan_inputs"].as_int()
    states = len(node.inputs) - scanned
    if scanned < 1 or states < 0:
        raise FormError(
            f"Scan node '{node.name}' has num_scan_inputs {scanned} and {len(node.inputs)} inputs"
        )
    outer = Inserter(node, f"{node.name}/outside")
    axes = _numbers(node, "scan_input_axes", scanned)
    directions = _numbers(node, "scan_input_directions", scanned)
    trips = outer.size(node.inputs[states], axes[0])
    one = outer.constant(np.array(1, np.int64))
    last = outer.node("Sub", [trips, one])
    number = ir.Value(
        name=f"{node.name}/i", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.INT64)
    )
    going = ir.Value(
        name=f"{node.name}/go", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.BOOL)
    )
    copy = body.clone(allow_outer_scope_values=True)
    formal = list(copy.inputs)
    nodes = list(copy)
    results = list(copy.outputs)
    stored = list(copy.initializers.values())
    copy.outputs.clear()
    copy.inputs.clear()
    copy.initializers.clear()
    copy.remove(nodes)
    added, elements = [], {}
    for index in range(scanned):
        value, position = node.inputs[states + index], number
        if directions[index] == _BACKWARD:
            back = ir.node("Sub", [last, number], name=f"{node.name}/back_{index}")
            added.append(back)
            position = back.outputs[0]
        axis = axes[index]
        take = ir.node("Gather", [value, position], {"axis": axis}, name=f"{node.name}/x_{index}")
        added.append(take)
        element, inside = formal[states + index], take.outputs[0]
        inside.type, inside.shape = element.type, element.shape
        element.replace_all_uses_with(inside)
        elements[element] = inside
    for extra in added:
        extra.outputs[0].name = extra.name
    on = ir.node("Identity", [going], name=f"{node.name}/on")
    on.outputs[0].name = on.name
    inner = ir.Graph(
        [number, going, *formal[:states]],
        [on.outputs[0], *(elements.get(value, value) for value in results)],
        nodes=[*added, *nodes, on],
        initializers=stored,
        opset_imports=body.opset_imports,
        name=body.name,
    )
    inputs = [trips, None, *node.inputs[:states]]
    loop = ir.node("Loop", inputs, {"body": inner}, num_outputs=len(node.outputs), name=node.name)
    for made, old in zip(loop.outputs, node.outputs, strict=True):
        made.name, made.type = f"{old.name}/loop", old.type
    node.graph.insert_before(node, loop)
    replace_outputs(node, _arranged(node, loop, states, results))


def _arranged(node: ir.Node, loop: ir.Node, states: int, results: list[ir.Value]) -> list[ir.Value]:
    """The loop's outputs along the axes and in the directions that the Scan asks for."""
    count = len(loop.outputs) - states
    axes = _numbers(node, "scan_output_axes", count)
    directions = _numbers(node, "scan_output_directions", count)
    outer = Inserter(node, f"{node.name}/arranged")
    found = list(loop.outputs[:states])
    for index, value in enumerate(loop.outputs[states:]):
        if directions[index] == _BACKWARD:
            bounds = [outer.constant(np.array([n], np.int64)) for n in (-1, -(1 << 31), 0, -1)]
            value = outer.node("Slice", [value, *bounds])
        element = results[states + index]
        if axes[index]:
            if element.shape is None:
                raise ModelError(
                    f"Scan node '{node.name}' stacks output {index} along axis {axes[index]}; "
                    "expected to know its rank: export the model with inferred shapes"
                )
            rank = len(element.shape) + 1
            order = list(range(1, rank))
            order.insert(axes[index] % rank, 0)
            value = outer.node("Transpose", [value], perm=order)
        value.dtype = element.dtype
        found.append(value)
    return found


def _numbers(node: ir.Node, name: str, count: int) -> list[int]:
    attribute = node.attributes.get(name)
    return [0] * count if attribute is None else [int(n) for n in attribute.as_ints()]
