"""Inputs and outputs of a model: types, shapes that a user sets, names of dynamic dimensions.

The argument ``input_shapes`` freezes sizes, names them or limits them to a range.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from tvm import relax, tirx
from tvm.sym import Analyzer

from tvm_ext.configs.errors import nearest_hint
from tvm_ext.errors import InputError, ModelError
from tvm_ext.onnx_frontend.host.values import is_host_type, type_text
from tvm_ext.onnx_frontend.narrow_types import narrow_type
from tvm_ext.onnx_frontend.onnx_graph import free_names, names_read
from tvm_ext.onnx_frontend.sizes.scalar_rules import variables_of
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.spans import all_bindings_of
from tvm_ext.tensor_spec import SizeRange, SymbolicSize, TensorSpec, parse_size
from tvm_ext.tir_schedules.analysis.loop_nest import substitute

# Kernels count elements in 32 bits.
MAX_ELEMENTS = (1 << 31) - 1


def model_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a user feeds: graph inputs that are not initializers."""
    stored = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in stored]


class SetSizes(NamedTuple):
    """What ``set_input_shapes`` found.

    Attributes
    ----------
    ranges : dict[tuple[str, int], SizeRange]
        The ranges that were given, by input and axis.
    warnings : tuple[str, ...]
        One line when a name of the model was given several sizes.
    """

    ranges: dict[tuple[str, int], SizeRange]
    warnings: tuple[str, ...]


def set_input_shapes(
    model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int | str]], label: str
) -> SetSizes:
    """Sets the given sizes in place, and drops shapes that were inferred for other sizes.

    A symbolic dimension that is frozen or named in one input is so in all inputs that share its
    name, but for those that are given another size. Exporters use one name for several things, and
    ONNX Runtime only warns when their sizes differ.

    Raises
    ------
    InputError
        An input name is unknown, a rank differs, a size is none or contradicts the model, or an
        input is too large or has neither a shape in the model nor one given for it.
    """
    inputs = {value.name: value for value in model_inputs(model.graph)}
    by_symbol: dict[str, int | SymbolicSize] = {}
    contradictions: list[str] = []
    ranges: dict[tuple[str, int], SizeRange] = {}
    named: dict[str, SizeRange] = {}
    for name, shape in _plain_shapes(input_shapes, label).items():
        if name not in inputs:
            raise InputError(f"{label} has no input '{name}'; {nearest_hint(name, inputs)}")
        for axis, size in enumerate(
            _set_one(inputs[name], shape, by_symbol, contradictions, label)
        ):
            if isinstance(size, SymbolicSize) and size.range is not None:
                ranges[name, axis] = size.range
                _require_one_range(size.name, size.range, named, label)
    for value in inputs.values():
        # What was given by name stays, also where it has the former name of another size.
        for dim in value.type.tensor_type.shape.dim if value.name not in input_shapes else ():
            _set_size(dim, by_symbol.get(dim.dim_param))
        _require_shape(value, ranges, label)
    if input_shapes:
        del model.graph.value_info[:]
        _forget_output_shapes(model.graph)
    return SetSizes(ranges, _warnings(contradictions, label))


def _warnings(contradictions: Sequence[str], label: str) -> tuple[str, ...]:
    if not contradictions:
        return ()
    return (
        f"{label}: {'; '.join(contradictions)}: dimensions of one name with different sizes are "
        "taken for different dimensions",
    )


def _set_size(dim: onnx.TensorShapeProto.Dimension, size: int | SymbolicSize | None) -> None:
    if isinstance(size, int):
        dim.dim_value = size
    elif size is not None and size.name:
        dim.dim_param = size.name


def _plain_shapes(
    input_shapes: Mapping[str, Sequence[int | str]], label: str
) -> dict[str, list[object]]:
    """The shapes with NumPy's integers as Python's own."""
    try:
        return {
            name: [int(size) if isinstance(size, np.integer) else size for size in shape]
            for name, shape in input_shapes.items()
        }
    except (AttributeError, TypeError) as error:
        raise InputError(
            f"{label}: input_shapes is {input_shapes!r}; expected sizes by input name: "
            "write {'x': [1, 3, 224, 224]}"
        ) from error


def _require_one_range(
    name: str, given: SizeRange, named: dict[str, SizeRange], label: str
) -> None:
    known = named.setdefault(name, given) if name else given
    if known != given:
        raise InputError(
            f"{label}: dimension '{name}' was given the ranges {known} and {given}; expected one: "
            "give the same, or two names"
        )


def _require_shape(
    value: onnx.ValueInfoProto, ranges: Mapping[tuple[str, int], SizeRange], label: str
) -> None:
    if is_host_type(value.type):
        return
    if not value.type.tensor_type.HasField("shape"):
        raise InputError(
            f"{label}: input '{value.name}' has no shape in the model; expected at least its "
            "number of dimensions: give its sizes in input_shapes"
        )
    elements = math.prod(
        ranges[value.name, axis].high if (value.name, axis) in ranges else max(dim.dim_value, 1)
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
    )
    if elements > MAX_ELEMENTS:
        raise InputError(
            f"{label}: input '{value.name}' has {elements} elements; expected at most "
            f"{MAX_ELEMENTS}: give smaller sizes"
        )


def _set_one(
    value: onnx.ValueInfoProto,
    shape: list[object],
    by_symbol: dict[str, int | SymbolicSize],
    contradictions: list[str],
    label: str,
) -> list[int | SymbolicSize]:
    if value.type.WhichOneof("value") not in ("tensor_type", None):
        raise InputError(
            f"{label}: shape {shape} was given for input '{value.name}', which is of type "
            f"{type_text(value.type)}; expected shapes of tensors: leave it out"
        )
    tensor_type = value.type.tensor_type
    if not tensor_type.HasField("shape"):
        for _ in shape:
            tensor_type.shape.dim.add()
    dims = tensor_type.shape.dim
    if len(dims) != len(shape):
        raise InputError(
            f"{label}: shape {shape} was given for input '{value.name}', "
            f"which has rank {len(dims)}: give {len(dims)} sizes"
        )
    sizes = []
    for axis, (dim, given) in enumerate(zip(dims, shape, strict=True)):
        where = f"axis {axis} of input '{value.name}'"
        size = _size(given, where, label)
        symbol = dim.dim_param
        _require_same(dim, size, f"{label}: size {given} was given for {where}")
        # "?" is what some exporters write for every unknown dimension: it names nothing.
        if symbol and symbol != "?" and by_symbol.setdefault(symbol, size) != size:
            contradictions.append(
                f"dimension '{symbol}' was given the size {_spelled(by_symbol[symbol])}, and "
                f"{given} on {where}"
            )
            size = _named_apart(size, f"{symbol}_of_{value.name}_{axis}")
            dim.dim_param = ""
        if isinstance(size, SymbolicSize) and dim.HasField("dim_value"):
            dim.ClearField("dim_value")
        _set_size(dim, size)
        sizes.append(size)
    return sizes


def _size(given: object, where: str, label: str) -> int | SymbolicSize:
    if isinstance(given, str):
        try:
            return parse_size(given)
        except InputError as error:
            raise InputError(f"{label}: {where}: {error}") from error
    if not isinstance(given, int) or given < 1:
        raise InputError(
            f"{label}: size {given!r} was given for {where}; expected a positive integer, or the "
            "text of a name or a range"
        )
    return given


def _require_same(
    dim: onnx.TensorShapeProto.Dimension, size: int | SymbolicSize, what: str
) -> None:
    """A size that the model fixes cannot be another one; it can be left dynamic."""
    known = int(dim.dim_value)
    if isinstance(size, int) and known > 0 and size != known:
        raise InputError(
            f"{what}, which is {known} in the model: give {known} or leave the shape out"
        )


def _spelled(size: int | SymbolicSize) -> str:
    if isinstance(size, int):
        return str(size)
    return f"'{size.name or '?'}'" + (f" ({size.range})" if size.range is not None else "")


def _named_apart(size: int | SymbolicSize, name: str) -> int | SymbolicSize:
    """A dynamic size without a name would keep the name that it contradicts."""
    return size if isinstance(size, int) or size.name else SymbolicSize(name, size.range)


def _forget_output_shapes(graph: onnx.GraphProto) -> None:
    """Output shapes of an exporter may name other sizes than the frozen ones; inference refills."""
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


# Names every dynamic dimension of a model's inputs so that TVM's importer reads a name.


def name_dimensions(graph: onnx.GraphProto) -> None:
    """Renames in place, in inputs, outputs and inner values alike.

    The importer calculates with names: ``a/b`` is a division to it, ``1`` the number, and operators
    have no precedence. So an expression becomes a name of its own, and sizes that are unknown (no
    name, "?", or not positive) get a name each.
    """
    named = [(f"{v.name}_{axis}", dim) for v in model_inputs(graph) for axis, dim in _unknown(v)]
    names = {dim.dim_param: dim.dim_param for _, dim in named if _is_plain(dim.dim_param)}
    for position, dim in named:
        given = position if dim.dim_param in ("", "?") else dim.dim_param
        if given not in names:
            names[given] = _free_name(given, names)
        dim.dim_param = names[given]
    for value in (*graph.output, *graph.value_info):
        for _, dim in _unknown(value):
            dim.dim_param = names.get(dim.dim_param, dim.dim_param)


# Entries of a model that say, by the new name of a size, which one it was and in which branch.
_SIZE_OF_BRANCH = "tvm_ext.size_of_branch."


def name_sizes_of_branches(model: onnx.ModelProto) -> None:
    """Gives sizes of inputs that one branch of an If alone reads names of their own, in place.

    Whoever chooses the other branch feeds something small there: the keys of the encoder in a
    merged decoder without past, under the name of the encoder's length. The first axis keeps its
    name: it is the batch, of which all inputs are. What ``sizes_of_branches`` reads is noted down.
    """
    graph = model.graph
    side_of = _sides(graph)
    users: dict[str, set[str]] = {}
    for value in model_inputs(graph):
        for _, dim in _unknown(value):
            users.setdefault(dim.dim_param, set()).add(side_of.get(value.name, ""))
    taken = {name: name for name in users}
    for value in model_inputs(graph):
        side = side_of.get(value.name, "")
        for axis, dim in _unknown(value):
            if not (axis and side and dim.dim_param and len(users[dim.dim_param]) > 1):
                continue
            key = f"{dim.dim_param} {side}"
            if key not in taken:
                taken[key] = _free_name(f"{dim.dim_param}_{side}", taken)
                branch = "then" if side.startswith("then") else "else"
                entry = f"{branch} {dim.dim_param}"
                model.metadata_props.add(key=_SIZE_OF_BRANCH + taken[key], value=entry)
            dim.dim_param = taken[key]


def sizes_of_branches(model: onnx.ModelProto) -> dict[str, tuple[str, str]]:
    """By names that sizes got: the branch that reads them, and the name of the model's author."""
    noted = [entry for entry in model.metadata_props if entry.key.startswith(_SIZE_OF_BRANCH)]
    found = {}
    for entry in noted:
        branch, name = entry.value.split(" ", 1)
        found[entry.key.removeprefix(_SIZE_OF_BRANCH)] = (branch, name)
    return found


def _sides(graph: onnx.GraphProto) -> dict[str, str]:
    """The branch of an If that alone reads a value: ``then`` or ``else``, with the If's place."""
    readers: dict[str, set[str]] = {value.name: {""} for value in graph.output}
    for place, node in enumerate(graph.node):
        sides = {"": list(node.input) if node.op_type == "If" else list(names_read(node))}
        if node.op_type == "If":
            for attribute in node.attribute:
                side = attribute.name.removesuffix("_branch")
                sides[f"{side}{place}"] = list(free_names(attribute.g))
        for side, names in sides.items():
            for name in names:
                readers.setdefault(name, set()).add(side)
    return {name: found.pop() for name, found in readers.items() if len(found) == 1}


def _unknown(value: onnx.ValueInfoProto) -> list[tuple[int, onnx.TensorShapeProto.Dimension]]:
    dims = enumerate(value.type.tensor_type.shape.dim)
    return [(axis, dim) for axis, dim in dims if dim.dim_value <= 0]


def _is_plain(name: str) -> bool:
    return name.isidentifier() and name.isascii()


def _free_name(wanted: str, names: dict[str, str]) -> str:
    name = re.sub(r"[^0-9A-Za-z_]", "_", wanted)
    name = name if _is_plain(name) else f"d_{name}"
    while name in names or name in names.values():
        name += "_"
    return name


# Refuses inputs and outputs of types that no run can take or give.


# By name: older releases of ONNX lack some of them.
_PASSED = (
    *("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
    *("BFLOAT16", "DOUBLE", "FLOAT", "FLOAT16", "FLOAT8E8M0"),
    *("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"),
    *("INT2", "INT4", "UINT2", "UINT4", "FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2"),
    *("STRING", "UNDEFINED"),
)


def require_known_types(graph: onnx.GraphProto, label: str) -> None:
    """Checks the inputs and outputs of a model, and what sequences, maps and optionals hold.

    Raises
    ------
    ModelError
        One of them is a sparse tensor or opaque, or holds complex numbers.
    """
    sides = [("input", value) for value in model_inputs(graph)]
    sides += [("output", value) for value in graph.output]
    for side, value in sides:
        found = _refused_type(value.type)
        if found:
            raise ModelError(
                f"{label}: {side} '{value.name}' {found}; expected tensors of floats, integers, "
                "booleans or strings, or sequences, maps and optionals of them: export the model "
                "with such inputs and outputs"
            )


def _refused_type(type_: onnx.TypeProto) -> str:
    """What of a type is not passed; "" where all of it is."""
    kind = type_.WhichOneof("value")
    if kind is None:
        return ""
    if kind == "tensor_type":
        elements = onnx.TensorProto.DataType.Name(type_.tensor_type.elem_type)
        return "" if elements in _PASSED else f"holds {elements} elements"
    if kind in ("sequence_type", "optional_type"):
        return _refused_type(getattr(type_, kind).elem_type)
    if kind == "map_type":
        return _refused_type(type_.map_type.value_type)
    return f"is of kind {kind.removesuffix('_type')}"


def element_dtype(name: str) -> np.dtype:
    """NumPy's type for ONNX's name of an element type: "float" is float32."""
    return onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(name.upper()))


# Sizes of images into which the windows of a model fit.
#
# Where one does not, TVM's result has no elements; ONNX Runtime refuses a convolution, and lets the
# only window of a pool hang over.


_WINDOWS = frozenset(
    f"relax.nn.{kind}{n}d" for kind in ("conv", "max_pool", "avg_pool") for n in (1, 2, 3)
)
# Sizes that are tried one by one.
_MOST_TRIED = 1 << 12


def with_room_for_windows(
    ranges: Mapping[str, SizeRange], main: relax.Function
) -> dict[str, SizeRange]:
    """``ranges`` without sizes of which a convolution or pool of ``main`` makes nothing.

    Known of windows in ``main`` itself, on axes whose size follows from one symbolic size of an
    input.
    """
    inputs = {str(var.name) for param in main.params for var in variables_of(*_sizes_of(param))}
    allowed = dict(ranges)
    for binding in all_bindings_of(main):
        if operator_name(binding.value) not in _WINDOWS:
            continue
        for size in _sizes_of(binding.var)[2:]:
            variables = variables_of(size)
            if len(variables) != 1 or isinstance(size, tirx.Var):
                continue
            name = str(variables[0].name)
            known = allowed.get(name, SizeRange(0))
            least = _least(size, variables[0], known.low)
            if name in inputs and known.low < least <= known.high:
                allowed[name] = SizeRange(least, known.high)
    return allowed


def _sizes_of(var: relax.Var) -> list[tirx.Expr]:
    shape = getattr(var.ty, "shape", None)
    return list(shape.values) if isinstance(shape, relax.ShapeExpr) else []


def _least(size: tirx.Expr, variable: tirx.Var, start: int) -> int:
    """The first number from ``start`` on for which ``size`` is positive; ``start`` for none."""
    analyzer = Analyzer()
    for number in range(start, start + _MOST_TRIED):
        found = analyzer.simplify(substitute(size, {variable: tirx.const(number, "int64")}))
        if not isinstance(found, tirx.IntImm):
            return start
        if int(found) >= 1:
            return number
    return start


# Names, dtypes and shapes of a model's inputs and outputs.


def input_specs(
    graph: onnx.GraphProto, main: relax.Function, ranges: Mapping[str, SizeRange]
) -> tuple[TensorSpec, ...]:
    """One spec for each parameter of ``main``, under the ONNX names.

    ``ranges`` are those of symbolic dimensions, by name.
    """
    values = list(model_inputs(graph))
    return tuple(
        _spec(value, param.ty, ranges)
        for value, param in zip(values, main.params[: len(values)], strict=True)
    )


def output_specs(graph: onnx.GraphProto, main: relax.Function) -> tuple[TensorSpec, ...]:
    """One spec for each result of ``main``, under the ONNX names."""
    result = main.ret_ty
    types = list(result.fields) if isinstance(result, relax.TupleType) else [result]
    return tuple(_spec(value, ty) for value, ty in zip(graph.output, types, strict=True))


def _spec(
    value: onnx.ValueInfoProto, ty: relax.Type, ranges: Mapping[str, SizeRange] | None = None
) -> TensorSpec:
    name = value.name
    if not isinstance(ty, relax.TensorType):
        raise ModelError(
            f"'{name}' is a {type(ty).__name__}, expected a tensor: sequences, optionals and maps "
            "cannot be inputs or outputs; export the model with tensors only"
        )
    if ty.ndim < 0:
        shape: tuple[int | str, ...] = ("...",)
    elif ty.shape is None or not hasattr(ty.shape, "values"):
        shape = tuple(f"{name}_{axis}" for axis in range(ty.ndim))
    else:
        shape = tuple(_spec_size(size) for size in ty.shape.values)
    allowed = tuple((ranges or {}).get(str(size)) for size in shape)
    return TensorSpec(
        name, narrow_type(value) or str(ty.dtype), shape, allowed if any(allowed) else ()
    )


def _spec_size(size: object) -> int | str:
    if isinstance(size, tirx.Var):
        # As text, names that TVMScript takes for itself ("T", "R") become others.
        return str(size.name)
    return int(size) if isinstance(size, int | tirx.IntImm) else str(size)
