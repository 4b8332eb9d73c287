"""Modules with one convolution, and transposed convolution in NumPy."""

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import relax, tirx
from unoptimised import machine_of

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.relay_passes.spans import span_of

AVX512 = resolve_target("avx512")

Emit = Callable[[relax.Expr], relax.Var]


def draw(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    values = np.random.default_rng([seed, *shape]).uniform(-1, 1, shape)
    return (values * 9 if dtype.startswith("int") else values).astype(dtype)


def module(
    shape: Sequence[object],
    body: Callable[[Emit, relax.Var], list[relax.Expr]],
    dtype: str = "float32",
    extra: Sequence[relax.Var] = (),
) -> tvm.IRModule:
    """One function; its bindings carry the names node0, node1, ... as origin."""
    x = relax.Var("x", relax.TensorType(list(shape), dtype))
    bindings: list[relax.VarBinding] = []
    builder = relax.BlockBuilder()

    def emit(value: relax.Expr) -> relax.Var:
        value = builder.normalize(value)
        var = relax.DataflowVar(f"lv{len(bindings)}", value.ty, span_of([f"node{len(bindings)}"]))
        bindings.append(relax.VarBinding(var, value))
        builder.emit_normalized(bindings[-1])
        return var

    with builder.function("main", [x, *extra]):
        with builder.dataflow():
            outputs = [builder.emit_output(value) for value in body(emit, x)]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()


def conv_relu(
    conv: Callable[..., relax.Expr],
    shape: Sequence[int],
    weight: np.ndarray,
    constant: bool = True,
    **attrs: object,
) -> tvm.IRModule:
    """A ReLU behind a convolution, whose weight is a constant or the second input."""
    w = relax.const(weight)
    if not constant:
        w = relax.Var("w", relax.TensorType(weight.shape, str(weight.dtype)))
    return module(
        shape,
        lambda emit, x: [relax.op.nn.relu(emit(conv(x, w, **attrs)))],
        extra=[] if constant else [w],
    )


def apply(*passes: tvm.transform.Pass) -> Callable[[tvm.IRModule], tvm.IRModule]:
    """Runs the passes for a CPU with AVX-512, and checks what holds for every pass."""

    def run_passes(mod: tvm.IRModule) -> tvm.IRModule:
        before = mod.script(show_meta=True)
        with compiling_for(AVX512):
            new = tvm.transform.Sequential(list(passes))(mod)
            again = tvm.transform.Sequential(list(passes))(new)
        assert mod.script(show_meta=True) == before
        assert relax.analysis.check_well_formed(new)
        tvm.ir.assert_structural_equal(again, new)
        return new

    return run_passes


def operators(mod: tvm.IRModule) -> list[str]:
    values = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    return [str(v.op.name).removeprefix("relax.") for v in values if isinstance(v, relax.Call)]


def bindings(mod: tvm.IRModule) -> list[relax.VarBinding]:
    return [b for block in mod["main"].body.blocks for b in block.bindings]


def kernels(mod: tvm.IRModule) -> list[str]:
    return [str(g.name_hint) for g, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)]


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> list[np.ndarray]:
    machine = machine_of(mod)
    result = machine["main"](*map(tvm.runtime.tensor, arrays))
    values = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [value.numpy() for value in values]


def assert_same_numbers(new: tvm.IRModule, mod: tvm.IRModule, rtol: float = 1e-5) -> None:
    """Both modules compute the same of random inputs."""
    random = np.random.default_rng(1)
    shapes = [[int(size) for size in param.ty.shape] for param in mod["main"].params]
    arrays = [random.normal(size=shape).astype("float32") for shape in shapes]
    for got, wanted in zip(run(new, *arrays), run(mod, *arrays), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=rtol, atol=1e-5)


def conv_transpose(
    x: np.ndarray,
    weight: np.ndarray,
    strides: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> np.ndarray:
    """The definition: every input adds its multiple of the weights; float64, channels first.

    ``padding`` is what is cut off: before on all axes, then after.
    """
    rank = len(strides)
    batch, inputs = x.shape[:2]
    outputs, kernel = weight.shape[1], weight.shape[2:]
    full = [
        (side - 1) * stride + (size - 1) * step + 1 + extra
        for side, stride, size, step, extra in zip(
            x.shape[2:], strides, kernel, dilation, output_padding, strict=True
        )
    ]
    result = np.zeros((batch, groups, outputs, *full))
    grouped = x.reshape(batch, groups, inputs // groups, *x.shape[2:]).astype("float64")
    split = weight.reshape(groups, inputs // groups, outputs, *kernel).astype("float64")
    for taps in np.ndindex(*kernel):
        places = tuple(
            slice(tap * step, tap * step + (side - 1) * stride + 1, stride)
            for tap, step, side, stride in zip(taps, dilation, x.shape[2:], strides, strict=True)
        )
        products = np.einsum("ngi...,gio->ngo...", grouped, split[(..., *taps)])
        result[(slice(None),) * 3 + places] += products
    wanted = tuple(slice(padding[n], full[n] - padding[rank + n]) for n in range(rank))
    return result.reshape(batch, groups * outputs, *full)[(slice(None),) * 2 + wanted]
