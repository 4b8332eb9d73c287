"""Rearranges weights: right away where they are stored in the model, else as Relax operators."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.tir_schedules.recurrence.description import Recurrence


class Arrays:
    """Operations on arrays that are NumPy's or Relax expressions of static shape."""

    def __init__(self, bb: relax.BlockBuilder) -> None:
        self._bb = bb

    def given(self, value: relax.Expr) -> Any:
        """The stored array behind a constant; other expressions as they are."""
        return value.value.numpy() if isinstance(value, tvm.ir.GenericConst) else value

    def expression(self, array: Any) -> relax.Expr:
        """A Relax expression for either kind."""
        if isinstance(array, np.ndarray):
            return relax.const(np.ascontiguousarray(array), str(array.dtype))
        return array

    def cast(self, array: Any, dtype: str) -> Any:
        """The array in another element type."""
        if isinstance(array, np.ndarray):
            return array.astype(dtype)
        same = str(array.ty.dtype) == dtype
        return array if same else self._bb.normalize(relax.op.astype(array, dtype))

    def reshape(self, array: Any, shape: Sequence[int]) -> Any:
        """The same elements in another shape."""
        if isinstance(array, np.ndarray):
            return array.reshape(shape)
        return self._bb.normalize(relax.op.reshape(array, list(shape)))

    def transpose(self, array: Any, axes: Sequence[int]) -> Any:
        """The axes in another order."""
        if isinstance(array, np.ndarray):
            return array.transpose(axes)
        return self._bb.normalize(relax.op.permute_dims(array, list(axes)))

    def padded(self, array: Any, axis: int, size: int) -> Any:
        """The array with zeros behind it along one axis."""
        shape = self.shape(array)
        if shape[axis] == size:
            return array
        if isinstance(array, np.ndarray):
            return np.pad(array, [(0, size - n if a == axis else 0) for a, n in enumerate(shape)])
        shape[axis] = size - shape[axis]
        zeros = relax.op.full(shape, relax.const(0, str(array.ty.dtype)))
        return self._bb.normalize(relax.op.concat([array, self._bb.normalize(zeros)], axis))

    def part(self, array: Any, axis: int, start: int, end: int) -> Any:
        """Elements from ``start`` to before ``end`` along one axis."""
        if isinstance(array, np.ndarray):
            return array[(slice(None),) * axis + (slice(start, end),)]
        return self._bb.normalize(relax.op.strided_slice(array, [axis], [start], [end]))

    def add(self, a: Any, b: Any) -> Any:
        """The sum of two arrays of the same kind."""
        if isinstance(a, np.ndarray):
            return a + b
        return self._bb.normalize(relax.op.add(a, b))

    @staticmethod
    def shape(array: Any) -> list[int]:
        """Its sizes, which must be known."""
        return [
            int(size) for size in (array.shape if isinstance(array, np.ndarray) else array.ty.shape)
        ]


class RecurrentWeights:
    """The weights of a layer in the order in which ``Recurrence.operands`` wants them."""

    def __init__(self, arrays: Arrays, recurrence: Recurrence) -> None:
        self._arrays = arrays
        self._recurrence = recurrence

    def projection(self, w: Any) -> Any:
        """``W [directions, gates * H, I]`` as ``[I, columns of x]``."""
        blocks = self._in_blocks(w)
        size = self._arrays.shape(w)[2]
        turned = self._arrays.transpose(blocks, (4, 0, 2, 1, 3))
        columns = math.prod(self._arrays.shape(turned)[1:])
        return self._arrays.reshape(turned, [size, columns])

    def recurrent(self, r: Any) -> list[Any]:
        """``R [directions, gates * H, H]`` for each product."""
        blocks = self._arrays.padded(self._in_blocks(r), 4, self._recurrence.summed)
        turned = self._arrays.transpose(blocks, (0, 2, 4, 1, 3))
        return [
            self._arrays.part(turned, 3, product.gates[0], product.gates[-1] + 1)
            for product in self._recurrence.products()
        ]

    def biases(self, b: Any) -> tuple[Any, Any | None]:
        """``B [directions, 2 * gates * H]`` as what is added to ``x`` and as ``b_candidate``."""
        recurrence, arrays = self._recurrence, self._arrays
        width = recurrence.gates * recurrence.hidden
        outer, inner = arrays.part(b, 1, 0, width), arrays.part(b, 1, width, 2 * width)
        candidate = None
        if "b_candidate" in recurrence.operands():
            last = 2 * recurrence.hidden
            candidate = arrays.padded(arrays.part(inner, 1, last, width), 1, recurrence.padded)
            inner = arrays.padded(arrays.part(inner, 1, 0, last), 1, width)
        total = arrays.reshape(arrays.add(outer, inner), [recurrence.directions, width, 1])
        turned = arrays.transpose(self._in_blocks(total), (0, 2, 1, 3, 4))
        return arrays.reshape(turned, [math.prod(arrays.shape(turned))]), candidate

    def peepholes(self, p: Any) -> Any:
        """``P [directions, 3 * H]`` as ``[directions, 3, padded]``."""
        recurrence = self._recurrence
        cut = self._arrays.reshape(p, [recurrence.directions, 3, recurrence.hidden])
        return self._arrays.padded(cut, 2, recurrence.padded)

    def _in_blocks(self, weights: Any) -> Any:
        """``[directions, gates * H, n]`` as ``[directions, gates, blocks, units, n]``."""
        recurrence, arrays = self._recurrence, self._arrays
        directions, gates = recurrence.directions, recurrence.gates
        last = arrays.shape(weights)[2]
        cut = arrays.reshape(weights, [directions, gates, recurrence.hidden, last])
        padded = arrays.padded(cut, 2, recurrence.padded)
        shape = [directions, gates, recurrence.blocks, recurrence.units, last]
        return arrays.reshape(padded, shape)
