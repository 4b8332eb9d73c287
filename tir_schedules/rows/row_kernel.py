"""A kernel as blocks that all run over the same rows, and what its expressions consist of."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.flat_views import elements
from tvm_ext.tir_schedules.inlining import walk


@dataclass(frozen=True)
class Axis:
    """A loop: its variable and how often it runs.

    The extent may be an expression, of what is known in the run only.
    """

    var: tirx.Var
    extent: Any


@dataclass(frozen=True)
class Store:
    """One element that a block writes, in the variables of rows and columns."""

    buffer: tvm.ir.Var
    indices: tuple[tvm.ir.Expr, ...]
    value: tvm.ir.Expr


@dataclass(frozen=True)
class Limit:
    """Where a block has an element: ``position``, in rows and columns, is below ``length``."""

    position: tvm.ir.Expr
    length: int


@dataclass(frozen=True)
class RowBlock:
    """What one block does to one row.

    Attributes
    ----------
    columns : tuple[Axis, ...]
        Its loops along the row; none for a value a row.
    stores : tuple[Store, ...]
        More than one when several results are reduced together (argmax).
    starts : tuple[Expr, ...]
        The values a reduction starts from; empty when the block does not reduce.
    limit : Limit or None
        Where the block ends, of a row whose last part is shorter than the others.
    """

    columns: tuple[Axis, ...]
    stores: tuple[Store, ...]
    starts: tuple[tvm.ir.Expr, ...]
    limit: Limit | None = None

    @property
    def length(self) -> Any:
        """Elements of the row that the block works on; an expression where they are open."""
        return product(axis.extent for axis in self.columns)


@dataclass(frozen=True)
class RowKernel:
    """A kernel as blocks that all run over the same rows.

    Attributes
    ----------
    rows : tuple[Axis, ...]
        The loops over rows, outermost first, those of extent 1 left out.
    blocks : tuple[RowBlock, ...]
        In program order.
    inner : dict[int, tuple[int, ...]]
        For each buffer that only the kernel sees, by ``buffer_key``: its dimensions that do not
        select the row.
    index_dtype : str
        Type of all loop variables.
    """

    rows: tuple[Axis, ...]
    blocks: tuple[RowBlock, ...]
    inner: dict[int, tuple[int, ...]]
    index_dtype: str

    @property
    def count(self) -> Any:
        """Number of rows; an expression where it is known in the run only."""
        return product(axis.extent for axis in self.rows)

    @property
    def length(self) -> int:
        """Elements of the longest row."""
        return max(block.length for block in self.blocks)

    def size_of(self, buffer: tvm.ir.Var) -> Any:
        """Elements of a buffer; an expression where they are known in the run only."""
        return elements(buffer)

    def loads(self) -> Iterator[tvm.ir.TensorLoad]:
        """All that the blocks read."""
        for block in self.blocks:
            for store in block.stores:
                yield from loads_of(store.value)


def is_reduction_only(kernel: RowKernel) -> bool:
    """Whether the kernel computes nothing but values of whole rows."""
    return all(block.starts or not block.columns for block in kernel.blocks)


def has_waiting_rows(kernel: RowKernel) -> bool:
    """Whether something of each column, and not of the whole row, waits between two blocks."""
    buffers = (store.buffer for block in kernel.blocks for store in block.stores)
    return any(
        static_extent(buffer.shape[dimension]) != 1
        for buffer in buffers
        for dimension in kernel.inner.get(buffer_key(buffer), ())
    )


def product(values: Any) -> Any:
    """The product of some integers; an expression when one of them is."""
    result: Any = 1
    for value in values:
        result *= value
    return result


def buffer_key(buffer: tvm.ir.Var) -> int:
    """What a dictionary knows a buffer or a variable by: comparing them makes an expression."""
    return hash(buffer)


def loads_of(expr: Any) -> list[tvm.ir.TensorLoad]:
    """All loads in an expression."""
    return [node for node in walk(expr) if isinstance(node, tvm.ir.TensorLoad)]


def accesses(stores: Iterable[Store]) -> Iterator[tuple[tvm.ir.Var, tuple[Any, ...]]]:
    """All that ``stores`` write and read: buffers with indices."""
    for store in stores:
        yield store.buffer, store.indices
        for load in loads_of(store.value):
            yield load.source, tuple(load.indices)


def substituted(
    expr: Any,
    values: Mapping[int, tvm.ir.Expr],
    load: Callable[[tvm.ir.TensorLoad], tvm.ir.Expr] = lambda node: node,
) -> Any:
    """``expr`` with other values for variables (by ``buffer_key``) and loads passed through."""
    return structural_map(
        expr,
        [
            (tvm.ir.TensorLoad, load),
            (tvm.ir.Var, lambda var: values.get(buffer_key(var), var)),
        ],
    )
