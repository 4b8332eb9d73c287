"""Turns Relax expressions into fused kernels, looks at their loops, and runs them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, s_tir, tirx
from unoptimised import HOST, built

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent

Spec = tuple[Sequence[int], str]
Kernels = dict[str, tirx.PrimFunc]


def f32(*shape: int) -> Spec:
    return shape, "float32"


def kernels_of(expression: Callable[..., relax.Expr], *specs: Spec) -> Kernels:
    """The fused kernels of ``expression``, a function of one variable for each of ``specs``."""
    builder = relax.BlockBuilder()
    variables = [
        relax.Var(f"x{i}", relax.TensorType(list(shape), dtype))
        for i, (shape, dtype) in enumerate(specs)
    ]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(expression(*variables))
        builder.emit_func_output(result)
    mod = builder.get()
    with host_description().tvm_target():
        for step in (
            relax.transform.DecomposeOpsForInference(),
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ):
            mod = step(mod)
    return {
        str(name.name_hint): func
        for name, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
    }


def kernel_of(expression: Callable[..., relax.Expr], *specs: Spec) -> tirx.PrimFunc:
    """The kernel of an expression that fuses into one."""
    (func,) = kernels_of(expression, *specs).values()
    return func


@dataclass(frozen=True)
class Loop:
    """A loop as code generation will see it; ``path`` names the kinds of the loops around it."""

    kind: str
    extent: int | None
    path: tuple[str, ...]


_KINDS = {
    tirx.ForKind.SERIAL: "serial",
    tirx.ForKind.PARALLEL: "parallel",
    tirx.ForKind.VECTORIZED: "vectorized",
    tirx.ForKind.UNROLLED: "unrolled",
    tirx.ForKind.THREAD_BINDING: "thread",
}


def statements(root: Any) -> Iterator[Any]:
    """All statements of a kernel."""
    yield root
    for child in _children(root):
        yield from statements(child)


def _children(root: Any) -> Iterator[Any]:
    for name in ("body", "block", "init", "then_case", "else_case"):
        child = getattr(root, name, None)
        if isinstance(child, tirx.Stmt):
            yield child
    yield from getattr(root, "seq", ())


def loops_of(func: tirx.PrimFunc) -> list[Loop]:
    """All loops of a kernel, outer ones first."""
    return list(_loops(func.body, ()))


def _loops(root: Any, path: tuple[str, ...]) -> Iterator[Loop]:
    if isinstance(root, tirx.For):
        kind = _KINDS[tirx.ForKind(root.kind)]
        yield Loop(kind, static_extent(root.extent), path)
        path = (*path, kind)
    for child in _children(root):
        yield from _loops(child, path)


def lowered(func: tirx.PrimFunc, machine: MachineDescription) -> tirx.PrimFunc:
    """The loops as vectorisation leaves them: what it could not do is a serial loop again."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    steps = [
        tirx.transform.BindTarget(machine.tvm_target()),
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.NarrowDataType(32),
        s_tir.transform.LoopPartition(),
        tirx.transform.VectorizeLoop(),
    ]
    return tvm.transform.Sequential(steps)(mod)["main"]


def run(
    functions: Mapping[str, tirx.PrimFunc], seed: int = 0, machine: MachineDescription = HOST
) -> dict[str, list[np.ndarray]]:
    """All buffers of every function after a run; same seed and shapes, same contents before it."""
    symbols = {f"f{i}": name for i, name in enumerate(functions)}
    library = built({symbol: functions[name] for symbol, name in symbols.items()}, machine)
    results: dict[str, list[np.ndarray]] = {}
    for symbol, name in symbols.items():
        generator = np.random.default_rng(seed)
        func = functions[name]
        buffers = [param for param in func.params if isinstance(param.ty, tirx.BufferType)]
        arrays = [tvm.runtime.tensor(_filled(buffer, generator)) for buffer in buffers]
        library[symbol](*arrays)
        results[name] = [array.numpy() for array in arrays]
    return results


def _filled(buffer: tvm.ir.Var, generator: np.random.Generator) -> np.ndarray:
    """Values that are small enough for an index and for an exponential."""
    shape = [static_extent(size) or 0 for size in buffer.shape]
    dtype = str(buffer.dtype)
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype("bool")
    if "int" in dtype:
        return generator.integers(0, 3, shape).astype(dtype)
    return generator.uniform(0.1, 1.0, shape).astype(dtype)


def assert_same(plain: Sequence[np.ndarray], scheduled: Sequence[np.ndarray], name: str) -> None:
    """Equal but for the order of sums, in which terms as large as the largest result may cancel."""
    for index, (wanted, found) in enumerate(zip(plain, scheduled, strict=True)):
        narrow = str(wanted.dtype) in ("float16", "bfloat16")
        largest = float(np.abs(wanted.astype("float64")).max(initial=0))
        least = max(1e-5, 1e-6 * largest) if np.isfinite(largest) else 1e-5
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if narrow else {"rtol": 2e-5, "atol": least}
        np.testing.assert_allclose(
            found, wanted, **tolerance, err_msg=f"{name}, buffer {index}", equal_nan=False
        )


def scalar_stores(func: tirx.PrimFunc, machine: MachineDescription) -> int:
    """Stores of single elements in the code that goes to LLVM."""
    stores = [s for s in statements(lowered(func, machine).body) if isinstance(s, tirx.BufferStore)]
    return sum("x" not in str(store.value.ty) for store in stores)
