"""Names, dtypes and shapes of a model's inputs and outputs."""

from collections.abc import Mapping

import onnx
from tvm import relax, tirx

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.input_shapes import model_inputs
from tvm_ext.onnx_frontend.narrow_types import narrow_type
from tvm_ext.open_size import SizeRange
from tvm_ext.tensor_spec import TensorSpec


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
        shape = tuple(_size(size) for size in ty.shape.values)
    allowed = tuple((ranges or {}).get(str(size)) for size in shape)
    return TensorSpec(
        name, narrow_type(value) or str(ty.dtype), shape, allowed if any(allowed) else ()
    )


def _size(size: object) -> int | str:
    if isinstance(size, tirx.Var):
        # As text, names that TVMScript takes for itself ("T", "R") become others.
        return str(size.name)
    return int(size) if isinstance(size, int | tirx.IntImm) else str(size)
