"""What the importer has to know of a converter beside how it converts.

The shape of a tensor of the model is no tensor in Relax, and one of its sizes is none either. Few
converters read them as they are; for all others the importer makes tensors of them.
"""

from enum import Enum
from typing import Any, TypeVar

from tvm_ext.hardware.tvm_compat import onnx_converter_map

Converter = TypeVar("Converter", bound=type)


class Shapes(Enum):
    """What a converter takes for an input that is a shape of the model."""

    AS_TENSORS = "a tensor of integers"
    AMONG_THEMSELVES = "the shape, unless another input is a tensor that the run computes"
    AS_THEY_ARE = "the shape"


def takes_shapes(shapes: Shapes) -> Any:
    """Has a class of converter say what it takes for shapes; without it, that is tensors."""

    def marked(converter: Converter) -> Converter:
        converter.shapes = shapes  # type: ignore[attr-defined]
        return converter

    return marked


def shapes_taken_by(converter: Any) -> Shapes:
    """What a converter, ours or TVM's, takes for a shape."""
    return getattr(converter, "shapes", Shapes.AS_TENSORS)


def gives_sequence(converter: Any) -> bool:
    """Whether a tuple from this converter is one sequence, and not one value for each output."""
    return getattr(converter, "sequence", False)


def draws_numbers(converter: Any) -> bool:
    """Whether it draws random numbers, new ones in every iteration of the loops around it."""
    return getattr(converter, "draws", False)


def of_tvm(operator: str, **traits: Any) -> Any:
    """TVM's converter of an operator of the default domain, with ``shapes`` or ``sequence``."""
    base = onnx_converter_map()[operator]
    return type(operator, (base,), {"__doc__": base.__doc__, **traits})
