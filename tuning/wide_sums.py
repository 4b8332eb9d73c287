"""Sums of half precision added up in float32: what other ways to add them are compared with.

A sum of 4,096 float16 products that is rounded after each of them is off by several per cent. Such
a kernel as it is written would be a worse judge than any candidate that rounds once.
"""

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.inlining import reduction_blocks

_WIDE = "float32"
_NARROW = ("float16", "bfloat16")


def with_wide_sums(mod: tvm.IRModule) -> tvm.IRModule:
    """The kernel "main" of ``mod``, unscheduled, with sums in float32 that are rounded at the end.

    A reduction that TVM cannot give another type stays as it is.
    """
    if not isinstance(mod["main"].body, s_tir.SBlockRealize):
        return mod
    sch = s_tir.Schedule(mod)
    for name in [str(sch.get(block).name_hint) for block in reduction_blocks(sch)]:
        writes = sch.get(sch.get_sblock(name)).writes
        if len(writes) == 1 and str(writes[0].source.dtype) in _NARROW:
            sch = _widened(sch, name)
    return sch.mod


def _widened(sch: s_tir.Schedule, name: str) -> s_tir.Schedule:
    """``sch`` with the sum of one block in float32; as it was where that is not possible."""
    changed = sch.copy()
    block = changed.get_sblock(name)
    try:
        changed.cache_write(block, 0, "global")
        changed.unsafe_set_dtype(block, 0, _WIDE)
    except s_tir.ScheduleError:
        return sch
    func = changed.mod["main"]
    return s_tir.Schedule(tvm.IRModule({"main": _without_rounding(func, changed, block)}))


def _without_rounding(func: tirx.PrimFunc, sch: s_tir.Schedule, block: SBlockRV) -> tirx.PrimFunc:
    """The kernel whose sum in ``block`` is not rounded to the narrow type at each step."""
    total = sch.get(block).writes[0].source

    def plain(store: tirx.BufferStore) -> tirx.BufferStore:
        loads = nodes(store.value, tvm.ir.TensorLoad)
        if not store.buffer.same_as(total) or not any(x.source.same_as(total) for x in loads):
            return store
        return tirx.BufferStore(total, _sum(store.value, total), store.indices)

    return func.with_body(structural_map(func.body, (tirx.BufferStore, plain)))


def _sum(value: Any, total: Any) -> Any:
    """``float32(float16(total) + x)`` as ``total + float32(x)``; other values as they are."""
    inner = value.value if isinstance(value, tirx.Cast) else value
    if not isinstance(inner, tirx.Add):
        return value
    for own, other in ((inner.a, inner.b), (inner.b, inner.a)):
        load = own.value if isinstance(own, tirx.Cast) else own
        if isinstance(load, tvm.ir.TensorLoad) and load.source.same_as(total):
            return load + _widest(other)
    return value


def _widest(value: Any) -> Any:
    """``value`` in float32, a product of two narrow numbers without rounding it first."""
    if isinstance(value, tirx.Mul):
        return value.a.astype(_WIDE) * value.b.astype(_WIDE)
    return value.astype(_WIDE)
