"""Loops in simpler forms: Scan as Loop, invariants hoisted, short loops unrolled.

Loops that append to a sequence become Loops with a scan output.
"""

from collections.abc import Container

import numpy as np
import onnx_ir as ir

from tvm_ext.errors import FormError, ModelError
from tvm_ext.onnx_frontend.ir_edits import Inserter, constant_of, opset_of, replace_outputs
from tvm_ext.onnx_frontend.loop_carried_shapes import element_shape, named_shape

_BACKWARD = 1
# What makes a sequence that a loop appends to.
_STARTS = ("SequenceEmpty", "SequenceConstruct")


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
        _scan_to_loop(node)
    return bool(found)


def _scan_to_loop(node: ir.Node) -> None:
    body = node.attributes["body"].as_graph()
    scanned = node.attributes["num_scan_inputs"].as_int()
    states = len(node.inputs) - scanned
    if scanned < 1 or states < 0:
        raise FormError(
            f"Scan node '{node.name}' has num_scan_inputs {scanned} and {len(node.inputs)} inputs"
        )
    outer = Inserter(node, f"{node.name}/outside")
    axes = _numbers(node, "scan_input_axes", scanned)
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
    added, elements = _taken(node, formal[states:], axes, number, last)
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


def _taken(
    node: ir.Node, formal: list[ir.Value], axes: list[int], number: ir.Value, last: ir.Value
) -> tuple[list[ir.Node], dict[ir.Value, ir.Value]]:
    """Nodes that take the elements of one iteration, and which inputs of the body these replace."""
    directions = _numbers(node, "scan_input_directions", len(formal))
    scanned = node.inputs[len(node.inputs) - len(formal) :]
    added, elements = [], {}
    for index, (value, element) in enumerate(zip(scanned, formal, strict=True)):
        position = number
        if directions[index] == _BACKWARD:
            back = ir.node("Sub", [last, number], name=f"{node.name}/back_{index}")
            added.append(back)
            position = back.outputs[0]
        attributes = {"axis": axes[index]}
        take = ir.node("Gather", [value, position], attributes, name=f"{node.name}/x_{index}")
        added.append(take)
        inside = take.outputs[0]
        inside.type, inside.shape = element.type, element.shape
        element.replace_all_uses_with(inside)
        elements[element] = inside
    for extra in added:
        extra.outputs[0].name = extra.name
    return added, elements


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


# Takes values out of loops that every iteration passes on as they came.
#
# Exporters that have no way to read a value from outside of a loop carry its weights through it.
# As loop-carried values they would be no constants any more: nothing could fold or pack them.


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


# Writes out the iterations of short loops, so that folding and fusion see one straight graph.


# Nodes that unrolling may make of one loop: a few times what one block of a large model has.
NODE_LIMIT = 400
# Sequences exist only while a model is compiled, so that loops over them must be written out.
SEQUENCE_NODE_LIMIT = 4000
# The smallest body takes some microseconds: these are half a minute.
MOST_TRIPS = 1 << 22
_ENDLESS = (1 << 63) - 1


def unroll_loops(model: ir.Model) -> bool:
    """Unrolls in place every Loop of few iterations; whether there was one.

    The trip count must be constant, and the condition always true: absent or constant at first, and
    passed on or constant in the body. An outer loop is unrolled before those in its body.

    Raises
    ------
    ModelError
        Such a loop has so many iterations that it would not end.
    """
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Loop" or node.domain not in ("", "ai.onnx"):
            continue
        body = node.attributes["body"].as_graph()
        trips = _trips(node, body)
        if trips is not None and trips > MOST_TRIPS:
            raise ModelError(
                f"Loop node '{node.name}' has {trips} iterations and no condition that ends it "
                f"earlier; expected at most {MOST_TRIPS}: export it with the trip count that it "
                f"needs"
            )
        size = sum(1 for _ in body.all_nodes()) + 2
        limit = SEQUENCE_NODE_LIMIT if _carries_sequences(node, body) else NODE_LIMIT
        if trips is not None and 0 < trips * size <= limit:
            _unroll(node, body, trips, opset_of(model))
            return True
    return False


def _trips(node: ir.Node, body: ir.Graph) -> int | None:
    """The trip count when nothing else ends the loop."""
    # Without loop-carried values, a condition that is left out need not even have an empty name.
    limit, first = [*node.inputs, None, None][:2]
    count = np.array(_ENDLESS) if limit is None else constant_of(limit)
    begun = np.True_ if first is None else constant_of(first)
    if count is None or begun is None or not _passes_condition(body):
        return None
    return int(count.item()) if begun.all() else 0


def goes_on(node: ir.Node, body: ir.Graph) -> bool:
    """Whether nothing but the trip count ends the loop: the condition is always true."""
    first = node.inputs[1] if len(node.inputs) > 1 else None
    begun = np.True_ if first is None else constant_of(first)
    return begun is not None and bool(begun.all()) and _passes_condition(body)


def _passes_condition(body: ir.Graph) -> bool:
    """Whether the condition is passed on, or constant and true."""
    going: ir.Value | None = body.outputs[0]
    while going is not None and (producer := going.producer()) is not None:
        if producer.op_type != "Identity":
            break
        going = producer.inputs[0]
    known = constant_of(going)
    return going is body.inputs[1] or (known is not None and bool(known.all()))


def _carries_sequences(node: ir.Node, body: ir.Graph) -> bool:
    values = [*node.inputs[2:], *node.outputs, *body.inputs, *body.outputs]
    kinds = (ir.SequenceType, ir.OptionalType)
    return any(value is not None and isinstance(value.type, kinds) for value in values)


def _unroll(node: ir.Node, body: ir.Graph, trips: int, opset: int) -> None:
    carried = list(node.inputs[2:])
    scans: list[list[ir.Value]] = [[] for _ in body.outputs[1 + len(carried) :]]
    for step in range(trips):
        inserter = Inserter(node, f"{node.name}/{step}")
        number = inserter.constant(_declared(np.array(step, np.int64), body.inputs[0]))
        going = inserter.constant(_declared(np.array(True), body.inputs[1]))
        _, *outputs = inserter.body(body, [number, going, *carried], step)
        carried = outputs[: len(carried)]
        for parts, value in zip(scans, outputs[len(carried) :], strict=True):
            parts.append(unsqueezed(inserter, value, 0, opset))
    inserter = Inserter(node, f"{node.name}/stacked")
    stacked = [inserter.node("Concat", parts, axis=0) for parts in scans]
    for made, output in zip(stacked, node.outputs[len(carried) :], strict=False):
        made.dtype = output.dtype
    # Outputs of a graph must not be its inputs or each other.
    copies = [inserter.node("Identity", [value]) for value in carried]
    for copy, value in zip(copies, carried, strict=True):
        copy.type = value.type
    replace_outputs(node, [*copies, *stacked])


def unsqueezed(inserter: Inserter, value: ir.Value, axis: int, opset: int) -> ir.Value:
    """The value with one axis more; it is given as an input since opset 13, before as attribute."""
    if opset < 13:
        added = inserter.node("Unsqueeze", [value], axes=[axis])
    else:
        axes = inserter.constant(np.array([axis], np.int64))
        added = inserter.node("Unsqueeze", [value, axes])
    added.dtype = value.dtype
    return added


def _declared(scalar: np.ndarray, formal: ir.Value) -> np.ndarray:
    """With as many axes as the body declares for its iteration number or condition."""
    axes = len(formal.shape) if formal.shape is not None else 0
    return scalar.reshape([1] * axes)


# Loops that append to a sequence, as Loops with a scan output: a sequence has no length in TVM.


def appending_loops_to_scans(model: ir.Model) -> bool:
    """Rewrites every such Loop in place; whether there was one.

    Before: ``q = Loop(n, c, SequenceEmpty())``, whose body ends in ``SequenceInsert(q, x)``
    After:  ``xs = Loop(n, c)``, whose body gives ``x``; ``q = SplitToSequence(xs)``

    What a SequenceConstruct begins with is put in front of ``xs``.

    A sequence that is only concatenated, of elements that differ in size along that axis, becomes
    a tensor that grows instead. Other sequences, whose elements need not be alike, stay.
    """
    found = [n for n in model.graph.all_nodes() if n.op_type == "Loop" and n.domain == ""]
    # A sequence has the shape of its elements, each of which may have sizes of its own.
    tensors = [value for value in model.graph.inputs if isinstance(value.type, ir.TensorType)]
    sizes = (size for value in tensors for size in value.shape or ())
    fixed = {size for size in sizes if size != ir.SymbolicDim(None)}
    return any([_append_to_scan(node, fixed, model) for node in found])


def _append_to_scan(node: ir.Node, fixed: Container[int | ir.SymbolicDim], model: ir.Model) -> bool:
    """``fixed`` are sizes that are the same in all iterations."""
    body = node.attributes["body"].as_graph()
    for index, given in enumerate(node.inputs[2:]):
        insert = _append(body, index)
        producer = given.producer() if given is not None else None
        if insert is None or producer is None or producer.op_type not in _STARTS:
            continue
        first = [value for value in producer.inputs if value is not None]
        growing = None if first else _growing(node, index, insert)
        if growing is not None:
            _grow(node, body, index, insert, growing)
            return True
        is_alike = not first and _alike_elements(node, index, insert.inputs[1], fixed)
        if is_alike or _keeps_shape(node, insert.inputs[1], first, model):
            _scan(node, body, index, insert, _rows(node, first, model))
            return True
    return False


def _alike_elements(
    node: ir.Node, index: int, element: ir.Value | None, fixed: Container[int | ir.SymbolicDim]
) -> bool:
    """Whether all iterations append elements of the same sizes.

    Elements that are joined along an axis of a known size must agree in all others.
    """
    if element is None or element.shape is None:
        return False
    axes = {_joined_axis(use.node) for use in node.outputs[index].uses()}
    joined = next(iter(axes)) if len(axes) == 1 else None
    if joined is not None and element.shape and isinstance(element.shape[joined], int):
        return True
    return all(isinstance(size, int) or size in fixed for size in element.shape)


def _keeps_shape(
    node: ir.Node, element: ir.Value | None, first: list[ir.Value], model: ir.Model
) -> bool:
    """Whether all iterations append elements of one shape, which those of the beginning have."""
    shape = None if element is None else element_shape(node, element, model)
    return shape is not None and all(named_shape(value) == shape for value in first)


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


def _rows(node: ir.Node, first: list[ir.Value], model: ir.Model) -> list[ir.Value]:
    """Elements with an axis in front, along which they are stacked."""
    before = Inserter(node, f"{node.name}/first")
    return [unsqueezed(before, value, 0, opset_of(model)) for value in first]


def _scan(node: ir.Node, body: ir.Graph, index: int, insert: ir.Node, rows: list[ir.Value]) -> None:
    """Gives each element as a part of a scan output, which is split into a sequence again.

    What the sequence begins with is put in front of it, as ``rows``.
    """
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
    if rows:
        whole = after.node("Concat", [*rows, stacked], axis=0)
        whole.type, whole.shape = stacked.type, stacked.shape
        stacked = whole
    sequence = after.node("SplitToSequence", [stacked], axis=0, keepdims=0)
    sequence.type = node.outputs[index].type
    results = list(loop.outputs[:-1])
    results.insert(index, sequence)
    replace_outputs(node, results)
