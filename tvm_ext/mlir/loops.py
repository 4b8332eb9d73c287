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
from torch_mlir.dialects import arith, memref, scf, vector
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.mlir import operations as ops
from tvm_ext.mlir.element_types import dtype_of, lanes_of, memref_of, stored_type
from tvm_ext.mlir.expressions import ExpressionWriter
from tvm_ext.mlir.storage import MemrefStorage, split_sizes
from tvm_ext.tir_schedules.analysis.buffer_access import flat_address, static_extent
from tvm_ext.tir_schedules.statements import buffer_data_operator

# What a compiler may use and need not: the statement inside means the same without it.
_HINTS = ("pragma", "storage_", "tvm_ext.", "tirx.", "hand_threaded", "realize_scope")


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
        # Of views: the memory that they are a part of, and where they begin there.
        self._roots: dict[int, tuple[ir.Value, ir.Value | None]] = {}

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
            tirx.DeclBuffer: self._view,
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
        self._store_value(store.buffer, store.indices, self.writer.value(store.value), None)

    def _store_value(
        self, buffer: Any, indices: Sequence[Any], value: ir.Value, mask: ir.Value | None
    ) -> None:
        lanes = value.type.shape[0] if isinstance(value.type, ir.VectorType) else 1
        dtype = f"{dtype_of(buffer)}x{lanes}" if lanes > 1 else dtype_of(buffer)
        stored = ops.cast_to_memory(value, dtype)
        if lanes == 1:
            self._storage.store(stored, buffer, self._indices(indices))
            return
        memory = self._storage.of(buffer)
        begin = self._begin_of_vector(indices)
        if begin is None:
            *outer, last = indices
            zeros = [*self._indices(outer), ops.index_constant(0)]
            every = self._every_lane(lanes) if mask is None else mask
            vector.scatter(None, memory, zeros, self.writer.value(last), every, stored)
        elif mask is None:
            vector.store(stored, memory, begin)
        else:
            vector.maskedstore(memory, begin, mask, stored)

    def _load(self, load: Any) -> ir.Value:
        dtype = dtype_of(load)
        if not isinstance(load, tvm.ir.TensorLoad):
            return self._masked_load(load, dtype)
        if lanes_of(dtype) == 1:
            value = self._storage.load(load.source, self._indices(load.indices))
        else:
            value = self._load_vector(load.source, load.indices, dtype, None)
        return ops.cast_from_memory(value, dtype)

    def _masked_load(self, call: Any, dtype: str) -> ir.Value:
        """``masked_load(buffer, index, mask)``: 0 where the mask does not hold."""
        buffer, *indices, mask = call.args
        holds = self.writer.value(mask)
        return ops.cast_from_memory(self._load_vector(buffer, indices, dtype, holds), dtype)

    def _load_vector(
        self, buffer: Any, indices: Sequence[Any], dtype: str, mask: ir.Value | None
    ) -> ir.Value:
        memory, kind = self._storage.of(buffer), stored_type(dtype)
        begin = self._begin_of_vector(indices)
        if begin is not None and mask is None:
            return vector.load(kind, memory, begin)
        nothing = arith.constant(kind, ir.DenseElementsAttr.get_splat(kind, _zero(kind)))
        if begin is not None:
            return vector.maskedload(kind, memory, begin, mask, nothing)
        *outer, last = indices
        zeros = [*self._indices(outer), ops.index_constant(0)]
        every = self._every_lane(lanes_of(dtype)) if mask is None else mask
        return vector.gather(kind, memory, zeros, self.writer.value(last), every, nothing)

    def _begin_of_vector(self, indices: Sequence[Any]) -> list[ir.Value] | None:
        """The indices of a vector's first element where the others follow it; None where not."""
        *outer, last = indices
        if any(isinstance(one, tirx.Ramp | tirx.Broadcast) for one in outer):
            raise NotApplicable("a vector goes along an axis that is not the last")
        ramp = last if isinstance(last, tirx.Ramp) else Analyzer().simplify(last)
        if not isinstance(ramp, tirx.Ramp) or static_extent(ramp.stride) != 1:
            return None
        return self._indices([*outer, ramp.base])

    def _every_lane(self, lanes: int) -> ir.Value:
        return ops.constant(1, f"boolx{lanes}")

    def _indices(self, indices: Sequence[Any]) -> list[ir.Value]:
        return [self.writer.index(one) for one in indices]

    def _view(self, stmt: Any) -> None:
        """Another shape of a buffer, or a part of it: ``memref.reinterpret_cast``."""
        buffer, place = stmt.buffer, _place_of_view(stmt.data)
        if place is None:
            raise NotApplicable(f"buffer {buffer.name} is a view of an address")
        base, indices = place
        if str(base.dtype) != str(buffer.dtype):
            raise NotApplicable(f"buffer {buffer.name} is a view of another type of elements")
        root, begin = self._roots.get(hash(base), (self._storage.of(base), None))
        offset = self.writer.index(flat_address(base, indices)) if indices else None
        if begin is not None:
            offset = begin if offset is None else arith.addi(begin, offset)
        self._roots[hash(buffer)] = (root, offset)
        self._storage.memory[hash(buffer)] = self._reinterpreted(root, buffer, offset)

    def _reinterpreted(self, root: ir.Value, buffer: Any, offset: ir.Value | None) -> ir.Value:
        sizes, dynamic = split_sizes(buffer.shape, self.writer)
        strides, moved = split_sizes(_strides(buffer), self.writer)
        begin = ir.ShapedType.get_dynamic_size() if offset is not None else 0
        layout = ir.StridedLayoutAttr.get(begin, strides)
        kind = ir.MemRefType.get(sizes, stored_type(dtype_of(buffer)), layout)
        offsets = [] if offset is None else [offset]
        return memref.ReinterpretCastOp(
            kind, root, offsets, dynamic, moved, [begin], sizes, strides
        ).result

    def _alloc_statement(self, stmt: Any) -> None:
        self.allocate(stmt.buffer)

    def _attribute(self, stmt: Any) -> None:
        if not str(stmt.attr_key).startswith(_HINTS):
            raise NotApplicable(f"its attribute {stmt.attr_key} has no operation in MLIR here")
        self.write(stmt.body)

    def _evaluate(self, stmt: Any) -> None:
        if isinstance(stmt.value, tvm.ir.Call):
            name = str(getattr(stmt.value.op, "name", "a function"))
            if name.endswith(".masked_store"):
                buffer, value, *indices, mask = stmt.value.args
                holds = self.writer.value(mask)
                self._store_value(buffer, indices, self.writer.value(value), holds)
                return
            raise NotApplicable(f"its call of {name} has no operation in MLIR here")


def _place_of_view(data: Any) -> tuple[Any, list[Any]] | None:
    """The buffer in whose memory a view is, and its first element there; None if unknown."""
    if not isinstance(data, tvm.ir.Call):
        return None
    if data.op.same_as(buffer_data_operator()):
        return data.args[0], []
    first = data.args[0] if str(getattr(data.op, "name", "")) == "tirx.address_of" else None
    return (first.source, list(first.indices)) if isinstance(first, tvm.ir.TensorLoad) else None


def _strides(buffer: Any) -> list[Any]:
    """Elements from one index to the next, of each axis."""
    found: list[Any] = []
    step: Any = tirx.const(1, "int64")
    for size in reversed(buffer.shape):
        found.insert(0, step)
        step = step * size
    return found


def _zero(kind: ir.VectorType) -> ir.Attribute:
    element = kind.element_type
    is_integer = isinstance(element, ir.IntegerType)
    return ir.IntegerAttr.get(element, 0) if is_integer else ir.FloatAttr.get(element, 0.0)


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
