"""Writes operations of xDSL's csl dialect, one after the other, and the arrays of one processing
element.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from xdsl.dialects import arith, csl, memref, scf
from xdsl.dialects.builtin import (
    AffineMapAttr,
    Float16Type,
    Float32Type,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    Signedness,
    StringAttr,
    SymbolRefAttr,
)
from xdsl.ir import Block, Region
from xdsl.ir.affine import AffineExpr, AffineMap

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.affine import Affine
from tvm_ext.wafer.csl.kernel import ELEMENT_BYTES, Load, PeKernel, Tensor, assignments_of

I16 = IntegerType(16)
U16 = IntegerType(16, Signedness.UNSIGNED)
U32 = IntegerType(32, Signedness.UNSIGNED)
STRUCT = csl.ComptimeStructType()
VECTOR = csl.DsdType(csl.DsdKind.mem1d_dsd)
ELEMENTS = {"float32": Float32Type(), "float16": Float16Type()}


class Body:
    """Appends to ``block``.

    Attributes
    ----------
    block
        What is written so far.
    """

    def __init__(self, block: Any = None) -> None:
        self.block = block if block is not None else Block()

    def add(self, op: Any) -> Any:
        """Appends an operation; returns its result, or None if it has none."""
        self.block.add_op(op)
        return op.results[0] if op.results else None

    def named(self, name: str, op: Any) -> Any:
        """The same, under a name for the printer."""
        result = self.add(op)
        result.name_hint = name
        return result

    def number(self, value: int, kind: Any = I16) -> Any:
        """An integer."""
        return self.add(arith.ConstantOp(IntegerAttr(value, kind)))

    def float(self, value: float, dtype: str) -> Any:
        """A constant of ``dtype``."""
        return self.add(arith.ConstantOp(FloatAttr(value, ELEMENTS[dtype])))

    def sum(self, terms: Affine, known: Mapping[int, Any]) -> Any:
        """The value of a sum; ``known`` has the loops' variables, by number."""
        total = None
        for loop, factor in terms.factors.items():
            term = known[loop]
            if factor != 1:
                term = self.add(arith.MuliOp(term, self.number(factor)))
            total = term if total is None else self.add(arith.AddiOp(total, term))
        if total is None:
            return self.number(terms.constant)
        if terms.constant:
            total = self.add(arith.AddiOp(total, self.number(terms.constant)))
        return total

    def array(self, name: str, elements: int, dtype: str) -> Any:
        """An array of zeros in the PE's memory."""
        return self.named(name, csl.ZerosOp(MemRefType(ELEMENTS[dtype], [elements])))

    def element(self, array: Any, offset: Any) -> Any:
        """One element of an array."""
        place = self.add(arith.IndexCastOp(offset, IndexType()))
        return self.add(memref.LoadOp.get(array, [place]))

    def set_element(self, array: Any, offset: Any, value: Any) -> None:
        """Writes one element of an array."""
        place = self.add(arith.IndexCastOp(offset, IndexType()))
        self.add(memref.StoreOp.get(value, array, [place]))

    def vector(self, name: str, array: Any, start: int, stride: int, length: int) -> Any:
        """A descriptor of ``length`` elements of an array, ``stride`` apart."""
        index = AffineExpr.dimension(0) * stride + start if stride else AffineExpr.constant(start)
        if stride == 1:
            index = AffineExpr.dimension(0) + start if start else AffineExpr.dimension(0)
        access = AffineMapAttr(AffineMap(1, 0, (index,)))
        operation = csl.GetMemDsdOp(
            operands=[array, [self.number(length)]],
            properties={"tensor_access": access},
            result_types=[VECTOR],
        )
        return self.named(name, operation)

    def moved(self, vector: Any, offset: Any, dtype: str) -> Any:
        """A descriptor that starts ``offset`` elements later."""
        operation = csl.IncrementDsdOffsetOp(
            operands=[vector, offset],
            properties={"elem_type": ELEMENTS[dtype]},
            result_types=[VECTOR],
        )
        return self.named(vector.name_hint, operation)

    def instruction(self, name: str, *operands: Any) -> None:
        """A vector instruction, such as "fmacs"; its result is the first operand."""
        (kind,) = (op for op in csl.CSL.operations if op.name == f"csl.{name}")
        self.add(kind(operands=[list(operands)]))

    def member(self, module: Any, name: str, kind: Any) -> Any:
        """A member of a structure or of an imported module."""
        operation = csl.MemberAccessOp(
            operands=[module], properties={"field": StringAttr(name)}, result_types=[kind]
        )
        return self.add(operation)

    def member_call(self, module: Any, name: str, *arguments: Any, result: Any = None) -> Any:
        """A call of a function of an imported module."""
        operation = csl.MemberCallOp(name, result, module.owner, list(arguments))
        return self.add(operation)

    def call(self, name: str, *arguments: Any) -> None:
        """A call of a function of the program."""
        self.add(csl.CallOp(SymbolRefAttr(name), list(arguments)))

    def load(self, variable: Any) -> Any:
        """The value of a variable that functions share."""
        return self.named(f"{variable.name_hint}_now", csl.LoadVarOp(variable))

    def store(self, variable: Any, value: Any) -> None:
        """Sets a variable that functions share."""
        self.add(csl.StoreVarOp(variable.owner, value))

    @contextmanager
    def loop(self, name: str, extent: int) -> "Iterator[tuple[Body, Any]]":
        """A loop: what is inside of it, and its variable."""
        inner = Body(Block(arg_types=[I16]))
        inner.block.args[0].name_hint = name
        yield inner, inner.block.args[0]
        inner.add(scf.YieldOp())
        bounds = [self.number(value) for value in (0, extent, 1)]
        self.add(scf.ForOp(*bounds, [], inner.block))

    @contextmanager
    def choice(self, condition: Any) -> "Iterator[tuple[Body, Body]]":
        """What is done if a condition holds, and what otherwise."""
        branches = Body(), Body()
        yield branches
        for branch in branches:
            branch.add(scf.YieldOp())
        self.add(scf.IfOp(condition, [], *(Region(branch.block) for branch in branches)))

    @contextmanager
    def when(self, condition: Any) -> "Iterator[Body]":
        """What is done only if a condition holds."""
        with self.choice(condition) as (inner, _):
            yield inner

    def compare(self, left: Any, right: Any, how: str = "eq") -> Any:
        """Whether a comparison of two integers holds: "eq", "slt" (less than)."""
        return self.add(arith.CmpiOp(left, right, how))


class Names:
    """Gives each thing a name of its own; keywords are the printer's matter.

    Parameters
    ----------
    taken : iterable of str
        Names that the program has anyway.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def unique(self, wanted: str) -> str:
        """``wanted`` with letters, digits and underscores only, and a number if it is taken.

        A name does not end in an underscore and a number: xDSL would cut them off.
        """
        base = re.sub(r"\W", "_", wanted, flags=re.ASCII)
        base = re.sub(r"_+(\d+)$", r"\1", base)
        if not base or base[0].isdigit():
            base = f"t{base}"
        found, number = base, 1
        while found in self._taken:
            number += 1
            found = f"{base}{'n' if base[-1].isdigit() else ''}{number}"
        self._taken.add(found)
        return found


# The arrays of one PE in xDSL's csl dialect.


# Offsets of descriptors are signed integers of 16 bits.
_MOST_ELEMENTS = (1 << 15) - 1


class Memory:
    """Declares arrays.

    Parameters
    ----------
    kernel : PeKernel
        Whose tiles they are.
    declarations : Body
        The part of the program before its functions.
    names : Names
        Of the program.

    Attributes
    ----------
    arrays : dict[Tensor, list]
        Those of the tiles: two, for even and odd steps, where one is filled while one is read.
    bytes : int
        Of all arrays so far.
    """

    def __init__(self, kernel: PeKernel, declarations: Body, names: Names) -> None:
        self.kernel = kernel
        self.bytes = 0
        self.arrays: dict[Tensor, list[Any]] = {}
        self._declarations = declarations
        self._names = names
        self._spares: dict[tuple[int, str], Any] = {}
        loops = [one.loops for one in assignments_of(kernel.items) if one.loops]
        self._longest = max((one[-1].extent for one in loops), default=1)
        twice = kernel.double_buffered
        for tensor, tile in kernel.tiles.items():
            both = [f"{tensor.name}_even", f"{tensor.name}_odd"]
            self.arrays[tensor] = [
                self._declare(name, tile.elements, tensor.dtype)
                for name in (both if tensor in twice else [tensor.name])
            ]

    def spare(self, number: int, dtype: str) -> Any:
        """An array for values in between, the same one for the same number and type."""
        if (number, dtype) not in self._spares:
            name = f"spare{number}_{'f32' if dtype == 'float32' else 'f16'}"
            self._spares[number, dtype] = self._declare(name, self._longest, dtype)
        return self._spares[number, dtype]

    def _declare(self, name: str, elements: int, dtype: str) -> Any:
        if elements > _MOST_ELEMENTS:
            raise NotApplicable(
                f"the tile of {name} has {elements} elements, more than the {_MOST_ELEMENTS} that "
                "a descriptor reaches"
            )
        self.bytes += elements * ELEMENT_BYTES[dtype]
        return self._declarations.array(self._names.unique(name), elements, dtype)


@dataclass(frozen=True)
class View:
    """A memory as the steps of one parity see it, 0 or 1."""

    memory: Memory
    parity: int = 0

    def array(self, tensor: Tensor) -> Any:
        """The array of a tensor."""
        arrays = self.memory.arrays[tensor]
        return arrays[self.parity % len(arrays)]

    def offset(self, load: Load) -> Affine:
        """Where an element lies in its array: elements from the start."""
        return self.memory.kernel.tiles[load.tensor].offset(load.indices)
