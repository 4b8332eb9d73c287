"""A loop whose body is a function, and how functions of the loop call each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_ext.onnx_frontend.control_flow.functions import function, function_name
from tvm_ext.onnx_frontend.control_flow.parameters import Signature
from tvm_ext.onnx_frontend.control_flow.symbolic_types import renewed, unknown_symbols
from tvm_ext.onnx_frontend.control_flow.values import fields


class Sizes:
    """Symbols of one function: those of the signature, and of the elements of scan outputs."""

    def __init__(self, symbols: dict[tirx.Var, Any], parameters: Sequence[relax.Var] = ()) -> None:
        self.symbols = symbols
        self.parameters = list(parameters)
        self._elements: dict[int, list[Any]] = {}

    def stacked(self, index: int, ty: relax.TensorType) -> relax.TensorType:
        """Of a scan output after some iterations; all calls in a function agree in elements."""
        if index not in self._elements:
            self._elements[index] = list(renewed(ty, self.symbols).shape.values[1:])
        count = tirx.Var("count", "int64")
        return relax.TensorType([count, *self._elements[index]], str(ty.dtype))


@dataclass(frozen=True)
class Loop:
    """A loop whose body has been converted.

    Attributes
    ----------
    signature : Signature
        Of the functions: iteration number, loop-carried values, then ``around``.
    around : list[relax.Expr]
        Arguments that stay the same: the trip count where it is computed, captured values.
    state : int
        How many parameters change: the iteration number and the loop-carried values.
    elements : list[relax.TensorType]
        Of the scan outputs, one iteration's part, with the new axis.
    counted : bool
        Whether nothing but the trip count ends the loop, so that there is no condition.
    body : tvm.ir.GlobalVar
        Level 0: takes ``signature``, returns the condition unless counted, the state, the elements.
    """

    bb: relax.BlockBuilder
    name: str
    signature: Signature
    around: list[relax.Expr]
    state: int
    elements: list[relax.TensorType]
    counted: bool
    body: tvm.ir.GlobalVar

    def call(
        self,
        callee: tvm.ir.GlobalVar,
        state: list[relax.Expr],
        rest: list[relax.Expr],
        sizes: Sizes,
    ) -> tuple[relax.Expr | None, list[relax.Expr], list[relax.Expr]]:
        """The condition, the state and the scan outputs after a call; ``sizes`` by symbol."""
        value = self.bb.emit(
            relax.Call(callee, self.signature.arguments([*state, *rest], sizes.symbols))
        )
        types = [renewed(ty, sizes.symbols) for ty in self.signature.types[: self.state]]
        # A counted loop stacks elements of known sizes to known sizes: nothing to cast.
        types += [
            None
            if self.counted and not unknown_symbols(ty, self.signature.fixed)
            else sizes.stacked(index, ty)
            for index, ty in enumerate(self.elements)
        ]
        found = fields(self.bb, value, types if self.counted else [None, *types])
        more = None if self.counted else found.pop(0)
        return more, found[: self.state], found[self.state :]

    def joined(self, parts: Sequence[list[relax.Expr]]) -> list[relax.Expr]:
        """The scan outputs of several calls, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return [
            self.bb.emit(relax.op.concat(list(outputs), axis=0))
            for outputs in zip(*parts, strict=True)
        ]

    def nothing(self, symbols: Any) -> list[relax.Expr]:
        """The scan outputs of no iteration."""
        found = []
        for ty in self.elements:
            sizes = [
                0 if unknown_symbols(relax.ShapeType([size]), self.signature.fixed) else size
                for size in ty.shape.values[1:]
            ]
            shape = [0, *(_in_symbols(size, symbols) for size in sizes)]
            if all(isinstance(size, int) for size in shape):
                found.append(relax.const(np.zeros(shape), str(ty.dtype)))
            else:
                found.append(self.bb.emit(relax.op.zeros(relax.ShapeExpr(shape), str(ty.dtype))))
        return found


Build = Callable[[list[relax.Expr], Sizes], relax.Expr]


def loop_function(
    loop: Loop,
    name: str,
    build: Build,
    straight: bool = False,
    into: tvm.ir.GlobalVar | None = None,
) -> tvm.ir.GlobalVar:
    """Adds a function of the loop's signature, or puts it in the place of another one."""
    parameters, values, symbols = loop.signature.parameters()
    known = {var: symbols[var] for var in loop.signature.fixed}
    sizes = Sizes(known, parameters)
    func = function(loop.bb, parameters, lambda: build(values, sizes), straight)
    if into is None:
        return loop.bb.add_func(func, function_name(loop.name, name))
    loop.bb.update_func(into, func)
    return into


def _in_symbols(size: Any, symbols: dict[tirx.Var, Any]) -> Any:
    if isinstance(size, int | tirx.IntImm):
        return int(size)
    return renewed(relax.TensorType([size], "int64"), symbols).shape.values[0]
