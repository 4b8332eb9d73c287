"""What the importer has to know of a converter beside how it converts.

Numbers that follow from sizes are no tensor in Relax. Few converters read them as they are; for all
others the importer makes tensors of them.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from tvm_ext.hardware.tvm_compat import onnx_converter_map

Converter = TypeVar("Converter", bound=type)


def takes_sizes(*positions: int) -> Callable[[Converter], Converter]:
    """Has a class of converter get ``SizeValues`` at these inputs; all others come as tensors."""

    def marked(converter: Converter) -> Converter:
        converter.size_inputs = positions  # type: ignore[attr-defined]
        return converter

    return marked


def size_inputs(converter: Any) -> tuple[int, ...]:
    """Which inputs a converter, ours or TVM's, reads as ``SizeValues``."""
    return getattr(converter, "size_inputs", ())


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
