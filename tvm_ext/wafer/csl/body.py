"""Writes operations of xDSL's csl dialect, one after the other, at the end of a block."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

from tvm_ext.tuning.mesh_analysis.affine import Affine

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
