"""What a converter reads of its node, and what the importer reads of a converter.

From the node: constants, sizes, attributes, and sizes known in the run. Numbers that follow
from sizes are no tensor in Relax: few converters read them as they are, which ``takes_sizes``
says, and for all others the importer makes tensors of them.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.sizes.size_values import SizeValues
from tvm_ext.onnx_frontend.tvm_compat import onnx_constant, onnx_converter_map

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


# What the importer has to know of a converter beside how it converts.
#
# Numbers that follow from sizes are no tensor in Relax. Few converters read them as they are; for
# all others the importer makes tensors of them.


Converter = TypeVar("Converter", bound=type)


def _marked(attribute: str, positions: tuple[int, ...]) -> Callable[[Converter], Converter]:
    def marked(converter: Converter) -> Converter:
        setattr(converter, attribute, positions)
        return converter

    return marked


def takes_sizes(*positions: int) -> Callable[[Converter], Converter]:
    """Has a class of converter get ``SizeValues`` at these inputs; all others come as tensors."""
    return _marked("size_inputs", positions)


def size_inputs(converter: Any) -> tuple[int, ...]:
    """Which inputs a converter, ours or TVM's, reads as ``SizeValues``."""
    return getattr(converter, "size_inputs", ())


def takes_generated(*positions: int) -> Callable[[Converter], Converter]:
    """Has a class of converter get ``GeneratedTensor`` at these inputs; others get tensors."""
    return _marked("generated_inputs", positions)


def generated_inputs(converter: Any) -> tuple[int, ...]:
    """Which inputs a converter, ours or TVM's, reads as ``GeneratedTensor``."""
    return getattr(converter, "generated_inputs", ())


def gives_sequence(converter: Any) -> bool:
    """Whether a tuple from this converter is one sequence, and not one value for each output."""
    return getattr(converter, "sequence", False)


def draws_numbers(converter: Any) -> bool:
    """Whether it draws random numbers, new ones in every iteration of the loops around it."""
    return getattr(converter, "draws", False)


def of_tvm(operator: str, **traits: Any) -> Any:
    """TVM's converter of an operator of the default domain, with ``sequence``, say."""
    base = onnx_converter_map()[operator]
    return type(operator, (base,), {"__doc__": base.__doc__, **traits})
