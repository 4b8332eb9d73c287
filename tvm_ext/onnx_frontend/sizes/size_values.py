"""An array of numbers that follow from sizes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax, te, tirx

# An integer, a float of NumPy, a bool, or an expression of symbolic sizes that is one of these.
# None is an element that only the run knows.
Element: TypeAlias = Any

INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32")
FLOATS = ("float32", "float64")


@dataclass(eq=False)
class SizeValues:
    """Numbers in the shape and the type of an ONNX tensor, each known, an expression, or unknown.

    Attributes
    ----------
    dtype : str
        Of ONNX's tensor. Expressions of integers are int64 whatever it is, and in its range.
    elements : np.ndarray
        Of this type where all are known, else an array of ``Element``.
    tensor : relax.Expr, optional
        All of them as the run computes them; there is one where an element is None.
    """

    dtype: str
    elements: np.ndarray
    tensor: relax.Expr | None = None

    @staticmethod
    def of(dtype: str, elements: np.ndarray, tensor: relax.Expr | None = None) -> "SizeValues":
        """The values, in NumPy's own type where all of them are known."""
        if elements.dtype == object and not any(_is_symbolic(element) for element in elements.flat):
            elements = np.array(elements.tolist(), dtype).reshape(elements.shape)
        return SizeValues(dtype, elements, tensor)

    @property
    def is_known(self) -> bool:
        """Whether all elements are numbers."""
        return self.elements.dtype != object

    @property
    def unknown(self) -> int:
        """How many elements only the run knows."""
        return 0 if self.is_known else sum(element is None for element in self.elements.flat)

    def listed(self) -> list[Element]:
        """The elements in order, as ``Element``."""
        if self.is_known:
            plain = self.dtype in INTEGERS or self.dtype == "bool"
            return list(self.elements.flatten().tolist() if plain else self.elements.flatten())
        return list(self.elements.flatten())

    def objects(self) -> np.ndarray:
        """The elements as an array of ``Element``."""
        return array_of(self.listed(), self.elements.shape)

    def expressions(self) -> list[tirx.Expr]:
        """Those of the elements that are expressions."""
        return [element for element in self.listed() if isinstance(element, tvm.ir.Expr)]

    def with_symbols(
        self, change: Callable[[tirx.Expr], tirx.Expr], tensor: relax.Expr | None
    ) -> "SizeValues":
        """The values with other expressions, and with the tensor where an element is unknown."""
        if self.is_known:
            return self
        elements = [change(e) if isinstance(e, tvm.ir.Expr) else e for e in self.listed()]
        return SizeValues(self.dtype, array_of(elements, self.elements.shape), tensor)

    def as_tensor(self, bb: relax.BlockBuilder) -> relax.Expr:
        """The tensor of ONNX: a constant, or what the run computes."""
        if self.is_known:
            return relax.const(self.elements, self.dtype)
        if self.tensor is None:
            self.tensor = _emitted(bb, self)
        return self.tensor


def array_of(elements: Sequence[Element], shape: Sequence[int]) -> np.ndarray:
    """An array of objects; NumPy would look for more axes in an expression."""
    array = np.empty(len(elements), object)
    for place, element in enumerate(elements):
        array[place] = element
    return array.reshape(shape)


def _is_symbolic(element: Element) -> bool:
    return element is None or isinstance(element, tvm.ir.Expr)


def _emitted(bb: relax.BlockBuilder, values: SizeValues) -> relax.Expr:
    shape, dtype, elements = values.elements.shape, values.dtype, values.listed()
    if dtype in INTEGERS:
        tensor = bb.emit(relax.op.shape_to_tensor(relax.ShapeExpr(elements)))
        if dtype != "int64":
            tensor = bb.emit(relax.op.astype(tensor, dtype))
    else:

        def kernel(elements: list[Any]) -> te.Tensor:
            return vector(elements, dtype)

        given = [typed(element, dtype) for element in elements]
        tensor = bb.emit_te(kernel, given, primfunc_name_hint="sizes")
    return tensor if len(shape) == 1 else bb.emit(relax.op.reshape(tensor, shape))


def vector(values: Sequence[Any], dtype: str = "int64", name: str = "values") -> te.Tensor:
    """A tensor of one axis from scalar expressions."""
    scalars = [typed(value, dtype) for value in values]

    def pick(place: tirx.Var) -> tirx.Expr:
        picked = scalars[-1]
        for index in range(len(scalars) - 2, -1, -1):
            picked = tirx.Select(place == index, scalars[index], picked)
        return picked

    return te.compute((len(scalars),), pick, name=name)


def typed(value: Any, dtype: str) -> tirx.Expr:
    """A number or an expression as an expression of this type."""
    if isinstance(value, int | float | np.generic):
        return tirx.const(value if dtype == "bool" else np.dtype(dtype).type(value).item(), dtype)
    is_typed = isinstance(value, tvm.ir.Expr) and str(value.ty.dtype) == dtype
    return value if is_typed else value.astype(dtype)
