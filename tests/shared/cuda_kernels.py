"""Kernels for a GPU, tested without one: run on the CPU, read as CUDA code, assembled by nvcc."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from lowering import _filled, assert_same, kernels_of
from machines import GPU
from tvm import tirx
from tvm_ffi import structural_map, structural_walk
from unoptimised import linked

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.cuda.compilers import find_nvcc
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.cuda.resources import KernelResources, parse_report
from tvm_ext.tir_schedules.analysis.guarded_loads import guarded_loads
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions, Template

# Built once and run once: LLVM's optimisations would take longer than they save.
SERIAL_TARGET = tvm.target.Target(
    {"kind": "llvm", "mtriple": host_description().mtriple, "opt-level": 0}
)

needs_nvcc = pytest.mark.skipif(
    find_nvcc() is None, reason="nvcc is not installed: no resource report"
)


def scheduled(
    template: Template,
    func: tirx.PrimFunc,
    machine: CudaDescription = GPU,
    decisions: Decisions = DEFAULT_DECISIONS,
) -> tirx.PrimFunc:
    """The kernel as ``template`` schedules it; fails with the template's reason otherwise."""
    found = apply_template(template, func, machine, decisions)
    assert not isinstance(found, NotApplicable), found.reason
    return found.func


def in_series(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with one thread after the other, in memory of one kind.

    Before TVM lowers it, a kernel has a loop over the threads for everything between two barriers
    and a place for each thread in every array, so this computes the same.
    """
    replaced: list[tuple[Any, Any]] = []

    def find(var: Any) -> None:
        if not isinstance(var.ty, tirx.BufferType) or any(var.same_as(old) for old, _ in replaced):
            return
        if var.scope() != "global":
            replaced.append((var, tirx.decl_buffer(list(var.shape), str(var.dtype), var.name)))

    def buffer(var: Any) -> Any:
        return next((new for old, new in replaced if old.same_as(var)), var)

    structural_walk(func.body, (tvm.ir.Var, find), order="pre")
    body = structural_map(func.body, (tvm.ir.Var, buffer))
    body = structural_map(body, (tvm.ir.Call, _without_shuffles))
    # The only bare calls are barriers.
    body = structural_map(body, (tirx.Evaluate, lambda _: tirx.Evaluate(tirx.const(0, "int32"))))
    body = structural_map(body, (tirx.For, _serial))
    return func.with_body(structural_map(body, (tirx.BufferStore, _checked)))


def _without_shuffles(call: tvm.ir.Call) -> Any:
    """What another lane of the warp holds, from its row of the array."""
    name = str(getattr(call.op, "name", ""))
    shuffles = ("", "_xor", "_up")
    if name not in [f"tirx.tvm_warp_shuffle{kind}" for kind in shuffles]:
        return call
    _, value, lanes, *_ = call.args
    *rows, lane, index = value.indices
    lanes = lanes.astype(str(lane.ty))
    warp = tirx.floordiv(lane, tirx.const(32, str(lane.ty))) * 32
    other = lane ^ lanes if name.endswith("xor") else warp + lanes
    if name.endswith("up"):
        other = tirx.Select(lane - lanes >= warp, lane - lanes, lane)
    return tirx.BufferLoad(value.source, [*rows, other, index])


def _checked(store: tirx.BufferStore) -> tirx.Stmt:
    """The store after a check that neither it nor its loads leave their buffers."""
    checks: Any = tirx.const(True, "bool")
    reads = [
        (load.source, load.indices, cond) for load, cond in guarded_loads(store.value, certain=True)
    ]
    for buffer, indices, condition in [*reads, (store.buffer, store.indices, None)]:
        for size, index in zip(buffer.shape, indices, strict=True):
            inside = tirx.And(index >= 0, index < size)
            if condition is not None:
                inside = tirx.Or(tirx.Not(condition), inside)
            checks = tirx.And(checks, inside)
    message = tvm.ir.StringImm(f"out of bounds at a store to {store.buffer.name}")
    return tirx.SeqStmt([tirx.AssertStmt(checks, tvm.ir.StringImm("IndexError"), [message]), store])


def _serial(loop: tirx.For) -> tirx.For:
    if tirx.ForKind(loop.kind) not in (tirx.ForKind.THREAD_BINDING, tirx.ForKind.VECTORIZED):
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)


def assert_numbers(
    plain: Mapping[str, tirx.PrimFunc], functions: Mapping[str, tirx.PrimFunc]
) -> None:
    """Both versions of every kernel compute the same; what they write is poisoned before."""
    symbols = {name: f"f{i}" for i, name in enumerate(plain)}
    modules = {}
    for name, symbol in symbols.items():
        modules[symbol] = plain[name].with_attr("global_symbol", symbol)
        modules[f"{symbol}_s"] = in_series(functions[name]).with_attr(
            "global_symbol", f"{symbol}_s"
        )
    library = linked(tirx.build(tvm.IRModule(modules), target=SERIAL_TARGET))
    for name, symbol in symbols.items():
        arrays = []
        for version in (symbol, f"{symbol}_s"):
            generator = np.random.default_rng(0)
            params = [p for p in plain[name].params if isinstance(p.ty, tirx.BufferType)]
            filled = [tvm.runtime.tensor(_filled(param, generator)) for param in params]
            library[version](*filled)
            arrays.append([array.numpy() for array in filled])
        assert_same(arrays[0], arrays[1], name)


def check(template: Template, expression: Any, *inputs: Any, **decided: int) -> tirx.PrimFunc:
    """Schedules the only kernel of an expression, compares numbers, and gives it back."""
    (func,) = kernels_of(expression, *inputs).values()
    from tvm_ext.tir_schedules.template import FixedDecisions

    result = scheduled(template, func, decisions=FixedDecisions(decided))
    assert_numbers({"kernel": func}, {"kernel": result})
    return result


def cuda_source(func: tirx.PrimFunc, machine: CudaDescription = GPU) -> str:
    """The CUDA code of a scheduled kernel, without the head that all have."""
    return whole_source(func, machine=machine).split('extern "C"', 1)[1]


def whole_source(*functions: tirx.PrimFunc, machine: CudaDescription = GPU) -> str:
    """All of the CUDA code of some scheduled kernels."""
    names = [f"k{number}" for number in range(len(functions))]
    pairs = zip(names, functions, strict=True)
    mod = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in pairs})
    target = tvm.target.Target(machine.tvm_target(), host="llvm")
    return str(compile_kernels(mod, target).mod.imports[0].inspect_source())


def shared_bytes(source: str) -> int:
    """Bytes of shared memory that CUDA code declares."""
    sizes = {"char": 1, "signed char": 1, "half": 2, "nv_bfloat16": 2, "double": 8, "int64_t": 8}
    found = re.findall(r"__shared__ (?:alignas\(\d+\) )?([\w ]+?) \w+\[(\d+)\]", source)
    return sum(sizes.get(dtype, 4) * int(count) for dtype, count in found)


def resources(source: str, arch: str, folder: Path | None = None) -> list[KernelResources]:
    """What each kernel of some CUDA code takes when it is assembled for ``arch``.

    No file is left, in ``folder`` or elsewhere.
    """
    nvcc = find_nvcc()
    assert nvcc is not None, "nvcc is not installed"
    return parse_report(nvcc.compile_with_report(source, arch)[1])
