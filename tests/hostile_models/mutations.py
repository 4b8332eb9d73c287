"""Ways to damage a model, each drawn from one generator: what files from anywhere may look like."""

import random
from collections.abc import Callable

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

# Sizes that no memory holds, or whose product does not fit into 64 bits.
HUGE = (1 << 20, 1 << 28, 1 << 31, 1 << 40, (1 << 62) + 1, (1 << 63) - 1)
ODD = (-(1 << 63), -(1 << 31), -100, -2, -1, 0, 1, 2, 7, 100, *HUGE)
ODD_FLOATS = (0.0, -1.0, 1e-30, 1e30, 3e38, float("inf"), float("-inf"), float("nan"))
TYPES = (0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 13, 14, 16, 17, 21, 22, 99, -1)
OPERATORS = (
    *("Conv", "Reshape", "Softmax", "Gather", "Loop", "If", "Einsum", "TopK", "Identity", "Expand"),
    *("Tile", "Range", "ConstantOfShape", "Add", "MatMul", "Cast", "Split", "Concat", "NonZero"),
    *("LSTM", "Scan", "Nonsense", ""),
)

Model = onnx.ModelProto
Mutation = Callable[[Model, random.Random], None]


def _graphs(model: Model) -> list[onnx.GraphProto]:
    """The graph and the bodies in it."""
    found, new = [], [model.graph]
    while new:
        found += new
        attributes = [a for graph in new for node in graph.node for a in node.attribute]
        new = [a.g for a in attributes if a.HasField("g")]
    return found


def _nodes(model: Model) -> list[onnx.NodeProto]:
    owners = [*_graphs(model), *model.functions]
    return [node for owner in owners for node in owner.node]


def _node(model: Model, draw: random.Random) -> onnx.NodeProto:
    return draw.choice(_nodes(model) or [onnx.NodeProto()])


def _tensor(model: Model, draw: random.Random) -> TensorProto:
    """An initializer, or the tensor of an attribute."""
    found = [stored for graph in _graphs(model) for stored in graph.initializer]
    found += [a.t for node in _nodes(model) for a in node.attribute if a.HasField("t")]
    return draw.choice(found or [TensorProto()])


def _value(model: Model, draw: random.Random) -> onnx.ValueInfoProto:
    """An input or output of the graph or of a body."""
    found = [v for graph in _graphs(model) for v in (*graph.input, *graph.output)]
    return draw.choice(found or [onnx.ValueInfoProto()])


def _name(model: Model, draw: random.Random) -> str:
    names = [name for node in _nodes(model) for name in node.output]
    names += [stored.name for graph in _graphs(model) for stored in graph.initializer]
    names += [value.name for graph in _graphs(model) for value in graph.input]
    return draw.choice([*names, "nobody", ""])


# Structure ---------------------------------------------------------------------------------------


def drop_node(model: Model, draw: random.Random) -> None:
    """A node is missing."""
    graph = draw.choice(_graphs(model))
    if graph.node:
        del graph.node[draw.randrange(len(graph.node))]


def repeat_node(model: Model, draw: random.Random) -> None:
    """A node stands there twice."""
    graph = draw.choice(_graphs(model))
    if graph.node:
        copy = onnx.NodeProto.FromString(draw.choice(graph.node).SerializeToString())
        graph.node.append(copy)


def drop_inputs(model: Model, draw: random.Random) -> None:
    """A node loses its last inputs, or all of them."""
    node = _node(model, draw)
    del node.input[draw.randrange(len(node.input) + 1) :]


def add_inputs(model: Model, draw: random.Random) -> None:
    """A node has more inputs or outputs than its operator knows."""
    node = _node(model, draw)
    if draw.random() < 0.5:
        node.input.extend(_name(model, draw) for _ in range(draw.choice((1, 3, 50))))
    else:
        node.output.extend(f"more_{i}" for i in range(draw.choice((1, 3, 50))))


def swap_inputs(model: Model, draw: random.Random) -> None:
    """A node gets its inputs in the reverse order."""
    node = _node(model, draw)
    node.input[:] = list(node.input)[::-1]


def drop_output(model: Model, draw: random.Random) -> None:
    """A node, or a graph, loses an output."""
    owner = draw.choice((_node(model, draw), draw.choice(_graphs(model))))
    if owner.output:
        del owner.output[draw.randrange(len(owner.output))]


def drop_stored(model: Model, draw: random.Random) -> None:
    """An initializer or an input of a graph is missing."""
    graph = draw.choice(_graphs(model))
    side = draw.choice((graph.initializer, graph.input))
    if side:
        del side[draw.randrange(len(side))]


def drop_field(model: Model, draw: random.Random) -> None:
    """Any field of any message is missing."""
    message = draw.choice((model, model.graph, _node(model, draw), _tensor(model, draw)))
    while True:
        fields = message.ListFields()
        if not fields:
            return
        field, value = draw.choice(fields)
        if field.message_type is None or draw.random() < 0.3:
            message.ClearField(field.name)
            return
        message = draw.choice(list(value)) if field.is_repeated else value


# Names -------------------------------------------------------------------------------------------


def rename_input(model: Model, draw: random.Random) -> None:
    """A node reads another value, one that nobody writes, or nothing."""
    node = _node(model, draw)
    if node.input:
        node.input[draw.randrange(len(node.input))] = _name(model, draw)


def make_cycle(model: Model, draw: random.Random) -> None:
    """A node reads its own result, or what is computed from it."""
    node = _node(model, draw)
    last = draw.choice((node, model.graph.node[-1])) if model.graph.node else node
    if node.input and last.output:
        node.input[draw.randrange(len(node.input))] = last.output[0]


def duplicate_name(model: Model, draw: random.Random) -> None:
    """Two nodes write the same name, a node that of a stored tensor, or inputs share one."""
    owner = draw.choice((_node(model, draw), _tensor(model, draw), _value(model, draw)))
    if not isinstance(owner, onnx.NodeProto):
        owner.name = _name(model, draw)
    elif owner.output:
        owner.output[draw.randrange(len(owner.output))] = _name(model, draw)


def odd_name(model: Model, draw: random.Random) -> None:
    """Names that a terminal, a file system or a code generator may stumble over."""
    name = draw.choice(("", "a" * 5000, "\n\x1b[31m", "main", "../x", "%s{0}", "\u2028ö"))
    owner = draw.choice((_node(model, draw), model.graph, _tensor(model, draw)))
    old, owner.name = owner.name, name
    for node in _nodes(model) if isinstance(owner, TensorProto) else ():
        node.input[:] = [name if each == old else each for each in node.input]


def change_operator(model: Model, draw: random.Random) -> None:
    """A node becomes another operator's, or another domain's."""
    node = _node(model, draw)
    node.op_type = draw.choice(OPERATORS)
    node.domain = draw.choice(("", "", "", "com.microsoft", "ai.onnx.ml", "own", "nowhere"))


def change_opset(model: Model, draw: random.Random) -> None:
    """Another version of the operator set or of the format, or none, or two."""
    version = draw.choice((-1, 0, 1, 6, 7, 9, 11, 13, 18, 22, 1 << 31, 1 << 40))
    kind = draw.randrange(5)
    if kind == 0:
        del model.opset_import[:]
    elif kind == 1:
        domain = draw.choice(("", "ai.onnx", "com.microsoft", "own"))
        model.opset_import.add(domain=domain, version=version)
    elif kind == 2:
        model.ir_version = version
    elif model.opset_import:
        model.opset_import[0].version = version


# Attributes --------------------------------------------------------------------------------------


def drop_attribute(model: Model, draw: random.Random) -> None:
    """A node loses an attribute, or its attribute loses the value or the type."""
    attributes = _node(model, draw).attribute
    if not attributes:
        return
    index = draw.randrange(len(attributes))
    if draw.random() < 0.5:
        del attributes[index]
    else:
        attributes[index].ClearField(draw.choice(("i", "ints", "g", "t", "type", "name", "s")))


def odd_attribute(model: Model, draw: random.Random) -> None:
    """An axis, a stride, a window, a factor or a mode gets a value from far away."""
    for _ in range(20):
        for attribute in _node(model, draw).attribute:
            if attribute.ints:
                attribute.ints[draw.randrange(len(attribute.ints))] = draw.choice(ODD)
            elif attribute.type == AttributeProto.INT:
                attribute.i = draw.choice(ODD)
            elif attribute.type == AttributeProto.FLOAT:
                attribute.f = draw.choice(ODD_FLOATS)
            elif attribute.type == AttributeProto.STRING:
                attribute.s = draw.choice((b"", b"\xff\xfe", b"...->", b"ij,jk->ikl", b"wrap"))
            else:
                continue
            return


def resize_attribute(model: Model, draw: random.Random) -> None:
    """A list of sizes is longer, shorter or empty."""
    lists = [a for node in _nodes(model) for a in node.attribute if a.ints]
    if not lists:
        return
    attribute = draw.choice(lists)
    if draw.random() < 0.5:
        del attribute.ints[draw.randrange(len(attribute.ints)) :]
    else:
        attribute.ints.extend(draw.choice(ODD) for _ in range(draw.choice((1, 2, 1000))))


def add_attribute(model: Model, draw: random.Random) -> None:
    """A node has an attribute that means something else, or of another type."""
    name = draw.choice(("axis", "axes", "to", "kernel_shape", "pads", "group", "value", "body"))
    empty = helper.make_graph([], "g", [], [])
    value = draw.choice((draw.choice(ODD), [draw.choice(ODD)] * 2, 1.5, "text", empty))
    _node(model, draw).attribute.append(helper.make_attribute(name, value))


# Tensors -----------------------------------------------------------------------------------------


def odd_constant(model: Model, draw: random.Random) -> None:
    """An integer of a constant (a shape, an axis, a count) gets a value from far away."""
    tensors = [t for graph in _graphs(model) for t in graph.initializer]
    stored = [t for t in tensors if t.data_type == TensorProto.INT64 and t.raw_data]
    if stored:
        tensor = draw.choice(stored)
        values = np.frombuffer(tensor.raw_data[: len(tensor.raw_data) // 8 * 8], np.int64).copy()
        if values.size:
            values[draw.randrange(values.size)] = draw.choice(ODD)
            tensor.raw_data = values.tobytes()


def odd_weight(model: Model, draw: random.Random) -> None:
    """A number of a constant is infinite, no number, or zero."""
    tensor = _tensor(model, draw)
    if tensor.data_type == TensorProto.FLOAT and len(tensor.raw_data) >= 4:
        values = np.frombuffer(tensor.raw_data[: len(tensor.raw_data) // 4 * 4], np.float32).copy()
        values[draw.randrange(values.size)] = draw.choice(ODD_FLOATS)
        tensor.raw_data = values.tobytes()


def resize_constant(model: Model, draw: random.Random) -> None:
    """A constant is whole and sound, and of another rank or size: a scalar, without elements."""
    stored = [t for graph in _graphs(model) for t in graph.initializer]
    whole = [t for t in stored if t.raw_data and t.data_type in (1, 2, 3, 7, 9)]
    if whole:
        tensor = draw.choice(whole)
        array = np.zeros(draw.choice([(), (0,), (1,), (3,), (2, 2), (1, 1, 1, 1, 1, 1)]))
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        tensor.CopyFrom(numpy_helper.from_array(array.astype(dtype), tensor.name))


def odd_dimension(model: Model, draw: random.Random) -> None:
    """An input, output or constant says that it has another size, up to some exabytes."""
    if draw.random() < 0.5:
        tensor = _tensor(model, draw)
        if tensor.dims:
            tensor.dims[draw.randrange(len(tensor.dims))] = draw.choice(ODD)
        return
    shape = _value(model, draw).type.tensor_type.shape
    if shape.dim:
        draw.choice(shape.dim).dim_value = draw.choice(ODD)


def change_rank(model: Model, draw: random.Random) -> None:
    """An input, output or constant loses its shape or a dimension, or has one more."""
    value = _value(model, draw)
    shape, kind = value.type.tensor_type.shape, draw.randrange(4)
    if kind == 0:
        _tensor(model, draw).dims.append(draw.choice(ODD))
    elif kind == 1 and shape.dim:
        del shape.dim[draw.randrange(len(shape.dim))]
    elif kind == 2:
        value.type.ClearField("tensor_type")
    else:
        shape.dim.add(dim_param=draw.choice(("N", "1/0", "a b", "")))


def terabyte(model: Model, draw: random.Random) -> None:
    """A constant of a terabyte or more, with little or no data."""
    tensor = _tensor(model, draw)
    if draw.random() < 0.7:
        tensor.ClearField("raw_data")
    del tensor.dims[:]
    tensor.dims.extend(draw.choice(([1 << 19, 1 << 19], [1 << 40], [1 << 32] * 3, [-1, 1 << 40])))


def sparse_terabyte(model: Model, draw: random.Random) -> None:
    """A sparse constant whose dense form is huge, or whose indices lie outside."""
    name = _tensor(model, draw).name or "sparse"
    kept = [stored for stored in model.graph.initializer if stored.name != name]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    sparse = model.graph.sparse_initializer.add()
    sparse.dims.extend(draw.choice(([1 << 40], [4, 3], [-1, 3], [1 << 32, 1 << 32])))
    sparse.values.CopyFrom(numpy_helper.from_array(np.float32([1, 2]), name))
    places = np.array([0, draw.choice(ODD)], np.int64)
    sparse.indices.CopyFrom(numpy_helper.from_array(places, f"{name}_at"))


def cut_data(model: Model, draw: random.Random) -> None:
    """The data of a constant are shorter or longer than its dimensions say, or in two forms."""
    tensor = _tensor(model, draw)
    data, kind = tensor.raw_data, draw.randrange(3)
    if kind == 0:
        tensor.raw_data = data[: draw.randrange(len(data) + 1)]
    elif kind == 1:
        tensor.raw_data = data + data[:8] + b"\0"
    else:
        tensor.float_data.extend([1.0, 2.0])
        tensor.int64_data.extend([1, 2])


def change_type(model: Model, draw: random.Random) -> None:
    """A constant, an input or an output has another element type."""
    dtype = draw.choice(TYPES)
    if draw.random() < 0.5:
        _tensor(model, draw).data_type = dtype
    else:
        _value(model, draw).type.tensor_type.elem_type = dtype


def change_kind(model: Model, draw: random.Random) -> None:
    """An input or output is a sequence, an optional or a map."""
    value = _value(model, draw)
    kind = draw.choice(("sequence_type", "optional_type", "map_type", "sparse_tensor_type"))
    getattr(value.type, kind).SetInParent()


def leave_the_folder(model: Model, draw: random.Random) -> None:
    """External data that are not in the model's folder, or not there, or of an odd length."""
    tensor = _tensor(model, draw)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    where = draw.choice(
        ("../secret", "/etc/passwd", "a/../../secret", "", "none.bin", "weights.bin", "link", ".")
    )
    del tensor.external_data[:]
    entries = {"location": where, "offset": str(draw.choice(ODD)), "length": str(draw.choice(ODD))}
    for key, text in entries.items():
        if key == "location" or draw.random() < 0.5:
            tensor.external_data.add(key=key, value=draw.choice((text, text, text, "x")))


# Bodies ------------------------------------------------------------------------------------------


def empty_body(model: Model, draw: random.Random) -> None:
    """A body without nodes, outputs or inputs, or one behind many others."""
    bodies = _graphs(model)[1:]
    if not bodies:
        return
    body = draw.choice(bodies)
    if draw.random() < 0.7:
        body.ClearField(draw.choice(("node", "output", "input", "name")))
        return
    for _ in range(draw.choice((2, 20))):
        copy = onnx.GraphProto.FromString(body.SerializeToString())
        deeper = helper.make_node("If", [_name(model, draw)], ["y"], name="deep")
        for name in ("then_branch", "else_branch"):
            inner = copy if name == "then_branch" else onnx.GraphProto(name="else")
            deeper.attribute.append(helper.make_attribute(name, inner))
        del body.node[:]
        body.node.append(deeper)


def recursive_function(model: Model, draw: random.Random) -> None:
    """A function of the model's own that calls itself, or stands there twice."""
    if not model.functions:
        return
    function = draw.choice(model.functions)
    if draw.random() < 0.5:
        function.node.add(
            op_type=function.name, domain=function.domain, input=function.input, output=["again"]
        )
    else:
        model.functions.append(onnx.FunctionProto.FromString(function.SerializeToString()))


MUTATIONS: tuple[Mutation, ...] = (
    *(drop_node, repeat_node, drop_inputs, add_inputs, swap_inputs, drop_output, drop_stored),
    *(drop_field, rename_input, make_cycle, duplicate_name, odd_name, change_operator),
    *(change_opset, drop_attribute, odd_attribute, odd_attribute, resize_attribute, add_attribute),
    *(odd_constant, odd_constant, odd_weight, resize_constant, odd_dimension, change_rank),
    *(terabyte, sparse_terabyte, cut_data, change_type, change_kind, leave_the_folder),
    *(empty_body, recursive_function),
)


def damaged(content: bytes, draw: random.Random) -> tuple[bytes, str]:
    """A model's file after a few mutations, and their names."""
    if draw.random() < 0.2:
        return _flipped(content, draw), "flipped"
    model = onnx.load_from_string(content)
    names = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        mutation = draw.choice(MUTATIONS)
        mutation(model, draw)
        names.append(mutation.__name__)
    return bytes(model.SerializeToString()), "+".join(names)


def _flipped(content: bytes, draw: random.Random) -> bytes:
    """Bytes turned, cut off, or doubled."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    kind = draw.random()
    if kind < 0.15:
        return bytes(data[: draw.randrange(len(data))])
    if kind < 0.25:
        at = draw.randrange(len(data))
        return bytes(data[:at] + data[at : at + 64] + data[at:])
    return bytes(data)
