"""What converters read from a node: constants, sizes, attributes, and sizes known in the run."""

from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_ext.errors import FormError
from tvm_ext.hardware.tvm_compat import onnx_constant
from tvm_ext.onnx_frontend.sizes.size_values import SizeValues

Size: TypeAlias = int | tirx.Expr


def constant_array(value: Any, params: Any) -> np.ndarray | None:
    """The values of an input that is stored in the model, None for what is computed in the run."""
    if value is None:
        return None
    value = onnx_constant(value, params)
    return value.value.numpy() if isinstance(value, tvm.ir.GenericConst) else None


def sizes_of(value: relax.Expr) -> list[Size]:
    """The sizes of a tensor, integers where they are known.

    Raises
    ------
    FormError
        Not even the rank is known.
    """
    shape = getattr(value.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        raise FormError("the rank of its input is not known")
    return [int(s) if isinstance(s, tirx.IntImm) else s for s in shape.values]


def text(attr: dict, name: str, default: str = "") -> str:
    """A string attribute."""
    value = attr.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def size_argument(bb: relax.BlockBuilder, value: Any, params: Any, name: str) -> Size:
    """A scalar input that is a size: an integer, or a variable ``name`` that the run defines.

    Raises
    ------
    FormError
        The input has more than one element.
    """
    if isinstance(value, SizeValues):
        if value.unknown:
            value = value.as_tensor(bb)
        elif len(value.listed()) == 1:
            return value.listed()[0]
        else:
            raise FormError(f"its {name} has {len(value.listed())} elements, expected one")
    stored = constant_array(value, params)
    if stored is not None:
        if stored.size != 1:
            raise FormError(f"its {name} has {stored.size} elements, expected one")
        return int(stored.reshape(()).item())
    listed = bb.emit(relax.op.reshape(bb.emit(relax.op.astype(value, "int64")), (1,)))
    variable = tirx.Var(name, "int64")
    bb.match_cast(bb.emit(relax.op.tensor_to_shape(listed)), relax.ShapeType([variable]))
    return variable
