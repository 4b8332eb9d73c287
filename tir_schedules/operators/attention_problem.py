"""What an attention kernel is given: sizes, and where each element lies."""

import math
from dataclasses import dataclass, replace
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
    """A tensor whose axes have letters; ``buffer`` is its flat view.

    ``shape`` has a number for each axis, or an int64 for a size that a run decides; heads are
    counted from ``first_head``.
    """

    buffer: tirx.Buffer
    axes: str
    shape: tuple[Any, ...]
    first_head: int = 0

    def size(self, letter: str) -> Any:
        """The extent along an axis; 1 when there is no such axis."""
        return self.shape[self.axes.index(letter)] if letter in self.axes else 1

    def stride(self, letter: str) -> Any:
        """Elements between neighbours along an axis; 0 where all are the same."""
        if _is_number(self.size(letter), 1):
            return 0
        return math.prod(self.shape[self.axes.index(letter) + 1 :])

    def address(self, **place: Any) -> tvm.ir.Expr:
        """The address of an element, in elements."""
        start = self.first_head * self.stride("h")
        total: Any = tirx.const(start, "int32") if isinstance(start, int) else start
        for letter, index in place.items():
            stride = self.stride(letter)
            if isinstance(stride, int):
                total = total + index * tirx.const(stride, "int32") if stride else total
            else:
                total = total + index * stride
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
    """One call of attention; positions and the batch are numbers, or sizes that a run decides.

    Attributes
    ----------
    compute : AttentionCompute
        What is computed.
    query, key, value, output : NamedTensor
        Operands and result.
    masks : tuple[NamedTensor, ...]
        As many as ``compute.masks``.
    sink : NamedTensor or None
        As ``compute.sink``.
    held : expression or None
        How many keys there are, where their tensor has room for more.
    """

    compute: AttentionCompute
    query: NamedTensor
    key: NamedTensor
    value: NamedTensor
    masks: tuple[NamedTensor, ...]
    output: NamedTensor
    sink: NamedTensor | None = None
    held: Any = None

    @property
    def batch(self) -> Any:
        """How many sequences there are."""
        return self.query.size("b")

    @property
    def heads(self) -> int:
        """Heads of the query."""
        return int(self.output.size("h"))

    @property
    def queries(self) -> Any:
        """Positions of the query."""
        return self.query.size("s")

    @property
    def keys(self) -> Any:
        """Positions of keys and values."""
        return self.key.size("s") if self.held is None else self.held

    @property
    def depth(self) -> int:
        """Elements of a query and of a key."""
        return int(self.query.size("d"))

    @property
    def width(self) -> int:
        """Elements of a value."""
        return int(self.value.size("d"))

    @property
    def group(self) -> int:
        """Heads of the query that share keys."""
        return self.compute.group


def read_problem(func: tirx.PrimFunc, views: FlatViews) -> AttentionProblem:
    """The attention that a function computes, by its attribute. Raises NotApplicable for others.

    Positions and the batch may be symbolic where ``views`` takes symbolic sizes.
    """
    if func.attrs is None or ATTRIBUTE not in func.attrs:
        raise NotApplicable("it is not a fused attention")
    compute = AttentionCompute.from_attribute(str(func.attrs[ATTRIBUTE]))
    params = list(func.params)
    held = params.pop(-2) if compute.held and len(params) > 1 else None
    if len(params) != 4 + len(compute.masks) + (compute.sink is not None):
        raise NotApplicable("its parameters are not those of a fused attention")
    is_symbolic = views.symbolic_sizes
    for param in params:
        if not isinstance(param.ty, tirx.BufferType) or not is_compact(param, is_symbolic):
            raise NotApplicable("a size is symbolic")
    axes = [compute.query, compute.key, compute.value, *(m.axes for m in compute.masks)]
    axes += [] if compute.sink is None else [compute.sink]
    tensors = []
    for param, letters in zip(params, [*axes, compute.output], strict=True):
        shape = tuple(
            _extent(letter, size) for letter, size in zip(letters, param.shape, strict=True)
        )
        known = math.prod(size for size in shape if isinstance(size, int))
        if known > _MAX_ELEMENTS or known == 0:
            raise NotApplicable("a tensor is empty or has more than 2^31 elements")
        tensors.append(NamedTensor(views.of(param), letters, shape))
    query, key, value, *masks, output = tensors
    sink = None if compute.sink is None else masks.pop()
    query, key, value = (
        replace(tensor, first_head=first)
        for tensor, first in zip((query, key, value), compute.first_heads, strict=True)
    )
    problem = AttentionProblem(compute, query, key, value, tuple(masks), output, sink, held)
    _refuse(problem)
    return problem


def _extent(letter: str, size: tvm.ir.Expr) -> Any:
    known = static_extent(size)
    if known is None and letter in "hd":
        raise NotApplicable("the number of heads or of their elements is symbolic")
    return size.astype("int64") if known is None else known


def _is_number(extent: Any, number: int) -> bool:
    return isinstance(extent, int) and extent == number


def _refuse(problem: AttentionProblem) -> None:
    operands = (problem.query, problem.key, problem.value)
    if len({operand.dtype for operand in operands}) > 1:
        raise NotApplicable("query, key and value are of different types")
    if any(operand.axes[-1] != "d" for operand in (*operands, problem.output)):
        raise NotApplicable("the elements of a head are not neighbours in memory")
    shared = problem.heads // problem.group
    for operand, needed in zip(operands, (problem.heads, shared, shared), strict=True):
        heads = operand.size("h")
        if heads not in (1, needed) and heads < operand.first_head + needed:
            raise NotApplicable(f"{problem.heads} heads do not share {heads} heads of keys evenly")
    if problem.heads % problem.group:
        raise NotApplicable(f"{problem.heads} heads are not of {problem.group} each")
