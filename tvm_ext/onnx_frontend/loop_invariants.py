"""Takes values out of loops that every iteration passes on as they came.

Exporters that have no way to read a value from outside of a loop carry its weights through it. As
loop-carried values they would be no constants any more: nothing could fold or pack them.
"""

import onnx_ir as ir

from tvm_ext.onnx_frontend.ir_edits import Inserter, replace_outputs


def hoist_loop_invariants(model: ir.Model) -> bool:
    """Rewrites every such Loop in place; whether there was one.

    Before: ``s', w' = Loop(n, c, s, w)``, whose body returns ``w`` unchanged
    After:  ``s' = Loop(n, c, s)``, whose body reads ``w`` from outside; ``w' = Identity(w)``
    """
    found = [n for n in model.graph.all_nodes() if n.op_type == "Loop" and n.domain == ""]
    return any([_hoist(node) for node in found])


def _hoist(node: ir.Node) -> bool:
    body = node.attributes["body"].as_graph()
    carried = list(node.inputs[2:])
    invariant = [
        _origin(body.outputs[1 + index]) is body.inputs[2 + index] for index in range(len(carried))
    ]
    if not any(invariant):
        return False
    inserter = Inserter(node, f"{node.name}/invariant")
    results: dict[int, ir.Value] = {}
    for index in reversed(range(len(carried))):
        value = carried[index]
        if not invariant[index] or value is None:
            continue
        body.outputs.pop(1 + index)
        formal = body.inputs.pop(2 + index)
        formal.replace_all_uses_with(_named_in(body, formal, value), replace_graph_outputs=True)
        results[index] = inserter.node("Identity", [value])
        results[index].type, results[index].shape = value.type, value.shape
    kept = [index for index in range(len(node.outputs)) if index not in results]
    inputs = [*node.inputs[:2], *(v for i, v in enumerate(carried) if i not in results)]
    del node.attributes["body"]
    loop = ir.node("Loop", inputs, {"body": body}, num_outputs=len(kept), name=node.name)
    for index, made in zip(kept, loop.outputs, strict=True):
        old = node.outputs[index]
        made.name, made.type, made.shape = f"{old.name}/varying", old.type, old.shape
        results[index] = made
    inserter.graph.insert_before(node, loop)
    replace_outputs(node, [results[index] for index in range(len(node.outputs))])
    return True


def _origin(value: ir.Value) -> ir.Value:
    """What a chain of Identity copies."""
    while (producer := value.producer()) is not None and producer.op_type == "Identity":
        source = producer.inputs[0]
        if producer.domain != "" or source is None:
            break
        value = source
    return value


def _named_in(body: ir.Graph, formal: ir.Value, value: ir.Value) -> ir.Value:
    """``value`` for the inside of the body: a copy where another output of the body is it."""
    if not formal.is_graph_output():
        return value
    copy = ir.node("Identity", [value], name=f"{formal.name}/copy")
    copy.outputs[0].name = copy.name
    copy.outputs[0].type, copy.outputs[0].shape = formal.type, formal.shape
    nodes = list(body)
    if nodes:
        body.insert_before(nodes[0], copy)
    else:
        body.append(copy)
    return copy.outputs[0]
