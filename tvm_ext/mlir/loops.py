"""Statements of TensorIR as loops of scf on memrefs: what is no perfect nest, and what is
scheduled already.

Before: ``for i in T.parallel(n): for j in T.vectorized(8): B[i, j] = A[i, j]``
After:  ``scf.parallel (%i) = ... { scf.for %j = ... { memref.load, memref.store } }``
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tvm
from torch_mlir import ir
from torch_mlir.dialects import arith, memref, scf
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.mlir import scalar_operations as ops
from tvm_ext.mlir.element_types import dtype_of, memref_of
from tvm_ext.mlir.expressions import ExpressionWriter
from tvm_ext.mlir.storage import MemrefStorage, split_sizes
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent

# What a compiler may use and need not: the statement inside means the same without it.
_HINTS = ("pragma", "storage_", "tirx.", "hand_threaded", "volatile", "realize_scope")


class LoopWriter:
    """Writes statements at the current insertion point.

    Parameters
    ----------
    storage : MemrefStorage
        The memory of the kernel's buffers; those that it allocates are added.
    values : dict of int to ir.Value
        The symbolic sizes, by the hash of their variables.
    """

    def __init__(self, storage: MemrefStorage, values: dict[int, ir.Value]) -> None:
        self._storage = storage
        self.writer = ExpressionWriter(values, self._load)

    def write(self, stmt: Any) -> None:
        """Writes a statement; raises NotApplicable for one that no dialect says."""
        known = {
            tirx.SeqStmt: self._sequence,
            tirx.For: self._loop,
            tirx.BufferStore: self._store,
            tirx.Bind: self._bind,
            tirx.IfThenElse: self._branch,
            tirx.While: self._while,
            tirx.AllocBuffer: self._alloc_statement,
            tirx.AttrStmt: self._attribute,
            tirx.Evaluate: self._evaluate,
            s_tir.SBlockRealize: self._block,
        }.get(type(stmt))
        if known is None:
            raise NotApplicable(f"its {type(stmt).__name__} has no operation in MLIR here")
        known(stmt)

    def allocate(self, buffer: Any) -> None:
        """Writes the allocation of a buffer; MLIR's own pass finds where it may be freed."""
        _, dynamic = split_sizes(buffer.shape, self.writer)
        kind = memref_of(buffer)
        # The largest type has 8 bytes; 64 are a cache line, and as much as vectors ask for.
        alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 64)
        value = memref.alloc(kind, dynamic, [], alignment=alignment)
        self._storage.memory[hash(buffer)] = value

    def _sequence(self, stmt: Any) -> None:
        for each in stmt.seq:
            self.write(each)

    def _loop(self, loop: Any) -> None:
        kind = tirx.ForKind(loop.kind)
        if kind == tirx.ForKind.THREAD_BINDING:
            raise NotApplicable("its loops are threads of a GPU")
        begin, extent = self.writer.index(loop.min), self.writer.index(loop.extent)
        step = ops.index_constant(1 if loop.step is None else _number(loop.step))
        end = arith.addi(begin, extent) if static_extent(loop.min) != 0 else extent
        if kind == tirx.ForKind.PARALLEL:
            body, variable = _parallel(begin, end, step)
        else:
            written = scf.ForOp(begin, end, step)
            body, variable = written.body, written.induction_variable
        self.writer.values[hash(loop.loop_var)] = variable
        with ir.InsertionPoint(body):
            self.write(loop.body)
            if kind == tirx.ForKind.PARALLEL:
                scf.reduce([], 0)
            else:
                scf.yield_([])

    def _block(self, realize: Any) -> None:
        if static_extent(realize.predicate) == 1:
            self._block_inside(realize)
            return
        with self._if(self.writer.value(realize.predicate)):
            self._block_inside(realize)

    def _block_inside(self, realize: Any) -> None:
        block = realize.block
        if block.match_buffers:
            raise NotApplicable(f"block {block.name_hint} has views of buffers")
        for axis, value in zip(block.iter_vars, realize.iter_values, strict=True):
            self.writer.bind(axis.var, value)
        for buffer in block.alloc_buffers:
            self.allocate(buffer)
        if block.init is not None:
            self._init(realize)
        self.write(block.body)

    def _init(self, realize: Any) -> None:
        """The first values, which are stored in the first step of the reduction."""
        first = None
        for axis in realize.block.iter_vars:
            if axis.iter_type == tirx.IterVar.CommReduce and static_extent(axis.dom.extent) != 1:
                at_begin = arith.cmpi(
                    arith.CmpIPredicate.eq,
                    self.writer.index(axis.var),
                    self.writer.index(axis.dom.min),
                )
                first = at_begin if first is None else arith.andi(first, at_begin)
        if first is None:
            self.write(realize.block.init)
            return
        with self._if(first):
            self.write(realize.block.init)

    @contextmanager
    def _if(self, condition: ir.Value) -> Iterator[None]:
        branch = scf.IfOp(condition)
        with ir.InsertionPoint(branch.then_block):
            yield
            scf.yield_([])

    def _branch(self, stmt: Any) -> None:
        condition = self.writer.value(stmt.condition)
        with self._if(condition):
            self.write(stmt.then_case)
        if stmt.else_case is not None:
            with self._if(ops.negated(condition)):
                self.write(stmt.else_case)

    def _while(self, stmt: Any) -> None:
        loop = scf.WhileOp([], [])
        with ir.InsertionPoint(loop.before.blocks.append()):
            scf.condition(self.writer.value(stmt.condition), [])
        with ir.InsertionPoint(loop.after.blocks.append()):
            self.write(stmt.body)
            scf.yield_([])

    def _bind(self, stmt: Any) -> None:
        if not isinstance(stmt.var.ty, tvm.ir.PrimType):
            raise NotApplicable(f"{stmt.var.name} stands for an address")
        self.writer.bind(stmt.var, stmt.value)

    def _store(self, store: Any) -> None:
        if getattr(store, "predicate", None) is not None:
            raise NotApplicable("it stores under a mask")
        value = ops.cast_to_memory(self.writer.value(store.value), dtype_of(store.buffer))
        self._storage.store(value, store.buffer, self._indices(store.indices))

    def _load(self, load: Any) -> ir.Value:
        value = self._storage.load(load.source, self._indices(load.indices))
        return ops.cast_from_memory(value, dtype_of(load))

    def _indices(self, indices: Sequence[Any]) -> list[ir.Value]:
        return [self.writer.index(one) for one in indices]

    def _alloc_statement(self, stmt: Any) -> None:
        self.allocate(stmt.buffer)

    def _attribute(self, stmt: Any) -> None:
        if not str(stmt.attr_key).startswith(_HINTS):
            raise NotApplicable(f"its attribute {stmt.attr_key} has no operation in MLIR here")
        self.write(stmt.body)

    def _evaluate(self, stmt: Any) -> None:
        if isinstance(stmt.value, tvm.ir.Call):
            name = getattr(stmt.value.op, "name", "a function")
            raise NotApplicable(f"its call of {name} has no operation in MLIR here")


def _number(expr: Any) -> int:
    known = static_extent(expr)
    if known is None:
        raise NotApplicable("a loop has a step that is no number")
    return known


def _parallel(begin: ir.Value, end: ir.Value, step: ir.Value) -> tuple[ir.Block, ir.Value]:
    """An empty ``scf.parallel`` loop: its body and its variable."""
    loop = scf.ParallelOp([], [begin], [end], [step], [])
    body = loop.regions[0].blocks.append(ir.IndexType.get())
    return body, body.arguments[0]
