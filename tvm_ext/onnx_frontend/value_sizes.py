"""Sizes of values, and a refusal of those with more elements than a kernel can count."""

import math

import onnx_ir as ir

from tvm_ext.errors import FormError, ModelError
from tvm_ext.onnx_frontend.input_shapes import MAX_ELEMENTS


def known_elements(value: ir.Value) -> int | None:
    """How many elements a value has; None where inference could not tell."""
    if value.shape is None or not all(isinstance(size, int) for size in value.shape):
        return None
    return math.prod(int(size) for size in value.shape if isinstance(size, int))


def require_countable(model: ir.Model, label: str) -> None:
    """Checks what every node computes, bodies included; shapes must have been inferred.

    Raises
    ------
    ModelError
        A value has too many elements, if only for a size of 1 on axes whose size is not known.
    """
    for node in model.graph.all_nodes():
        for output in node.outputs:
            elements = _least_elements(output)
            if elements > MAX_ELEMENTS:
                raise ModelError(
                    f"{label}: {node.op_type} node '{node.name}' makes '{output.name}' of "
                    f"{elements} elements; expected at most {MAX_ELEMENTS}: give smaller sizes, or "
                    "export the model with smaller ones"
                )


def _least_elements(value: ir.Value) -> int:
    sizes = value.shape if value.shape is not None else ()
    return math.prod(int(size) for size in sizes if isinstance(size, int))


def range_steps(start: float, limit: float, delta: float) -> int:
    """ONNX Range-11: ``max(ceil((limit - start) / delta), 0)``, exact for integers.

    ONNX's own inference and NumPy divide in float64 and take 2**63 steps for none.

    Raises
    ------
    FormError
        There are too many steps, or no number of them.
    """
    if delta == 0:
        raise FormError("the delta of a Range is 0")
    if isinstance(start, int):
        steps = -((start - limit) // delta)
    else:
        steps = math.ceil((limit - start) / delta)
    if steps > MAX_ELEMENTS:
        raise FormError(f"a Range has {steps} steps, expected at most {MAX_ELEMENTS}")
    return max(int(steps), 0)
