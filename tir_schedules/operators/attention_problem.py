"""What an attention kernel is given: sizes, and where each element lies."""

import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import element_bytes, is_compact, static_extent
from tvm_ext.tir_schedules.operators.attention import ATTRIBUTE, AttentionCompute
from tvm_ext.tir_schedules.statements import FlatViews

# Addresses are numbers of 32 bits.
_MAX_ELEMENTS = 2**31 - 1


@dataclass(frozen=True)
class NamedTensor:
    """A tensor whose axes have letters; ``buffer`` is its flat view."""

    buffer: tirx.Buffer
    axes: str
    shape: tuple[int, ...]

    def size(self, letter: str) -> int:
        """The extent along an axis; 1 when there is no such axis."""
        return self.shape[self.axes.index(letter)] if letter in self.axes else 1

    def stride(self, letter: str) -> int:
        """Elements between neighbours along an axis; 0 where all are the same."""
        if self.size(letter) == 1:
            return 0
        return math.prod(self.shape[self.axes.index(letter) + 1 :])

    def address(self, **place: Any) -> tvm.ir.Expr:
        """The address of an element, in elements."""
        total: Any = tirx.const(0, "int32")
        for letter, index in place.items():
            stride = self.stride(letter)
            total = total + index * tirx.const(stride, "int32") if stride else total
        return total

    @property
    def dtype(self) -> str:
        """Of the elements."""
        return str(self.buffer.dtype)

    @property
    def element_bytes(self) -> int:
        """Of one element."""
        return element_bytes(self.buffer)


@dataclass(frozen=True)
class AttentionProblem:
    """One call of attention with known sizes.

    Attributes
    ----------
    compute : AttentionCompute
        What is computed.
    query, key, value, output : NamedTensor
        Operands and result.
    masks : tuple[NamedTensor, ...]
        As many as ``compute.masks``.
    """

    compute: AttentionCompute
    query: NamedTensor
    key: NamedTensor
    value: NamedTensor
    masks: tuple[NamedTensor, ...]
    output: NamedTensor

    @property
    def batch(self) -> int:
        """How many sequences there are."""
        return self.query.size("b")

    @property
    def heads(self) -> int:
        """Heads of the query."""
        return self.query.size("h")

    @property
    def queries(self) -> int:
        """Positions of the query."""
        return self.query.size("s")

    @property
    def keys(self) -> int:
        """Positions of keys and values."""
        return self.key.size("s")

    @property
    def depth(self) -> int:
        """Elements of a query and of a key."""
        return self.query.size("d")

    @property
    def width(self) -> int:
        """Elements of a value."""
        return self.value.size("d")

    @property
    def group(self) -> int:
        """Heads of the query that share keys."""
        return self.compute.group


def read_problem(func: tirx.PrimFunc, views: FlatViews) -> AttentionProblem:
    """The attention that a function computes, by its attribute. Raises NotApplicable for others."""
    if func.attrs is None or ATTRIBUTE not in func.attrs:
        raise NotApplicable("it is not a fused attention")
    compute = AttentionCompute.from_attribute(str(func.attrs[ATTRIBUTE]))
    if len(func.params) != 4 + len(compute.masks):
        raise NotApplicable("its parameters are not those of a fused attention")
    if not all(isinstance(p.ty, tirx.BufferType) and is_compact(p) for p in func.params):
        raise NotApplicable("a size is symbolic")
    axes = [compute.query, compute.key, compute.value, *(m.axes for m in compute.masks)]
    tensors = []
    for param, letters in zip(func.params, [*axes, compute.output], strict=True):
        shape = tuple(static_extent(size) or 0 for size in param.shape)
        if math.prod(shape) > _MAX_ELEMENTS or 0 in shape:
            raise NotApplicable("a tensor is empty or has more than 2^31 elements")
        tensors.append(NamedTensor(views.of(param), letters, shape))
    query, key, value, *masks, output = tensors
    problem = AttentionProblem(compute, query, key, value, tuple(masks), output)
    _refuse(problem)
    return problem


def _refuse(problem: AttentionProblem) -> None:
    operands = (problem.query, problem.key, problem.value)
    if len({operand.dtype for operand in operands}) > 1:
        raise NotApplicable("query, key and value are of different types")
    if any(operand.axes[-1] != "d" for operand in (*operands, problem.output)):
        raise NotApplicable("the elements of a head are not neighbours in memory")
    heads = problem.key.size("h")
    if heads * problem.group not in (problem.heads, problem.group):
        raise NotApplicable(f"{problem.heads} heads do not share {heads} heads of keys evenly")
