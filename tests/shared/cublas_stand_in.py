"""A code generator in the place of TVM's for cuBLAS, whose functions run on this CPU."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import tvm
import tvm_ffi
from tvm import relax, te, tirx

GENERATOR = "relax.ext.cublas"


@contextmanager
def cublas_stand_in() -> Iterator[list[str]]:
    """TVM has cuBLAS inside of the block; yields the patterns that it is asked for.

    A function is found among the global ones: what is linked into a library is not looked up.
    """
    asked: list[str] = []
    symbols: list[str] = []

    def generate(functions, options, constants):
        modules = []
        for func in functions:
            symbol = str(func.attrs["global_symbol"])
            asked.append(re.search(r'"Composite": "([\w.]+)"', func.script()).group(1))
            built = tvm.compile(_loops(func, asked[-1]), target="llvm")
            modules.append(built.mod)
            tvm_ffi.register_global_func(symbol, built[symbol], override=True)
            symbols.append(symbol)
        return modules

    tvm_ffi.register_global_func(GENERATOR, generate)
    try:
        yield asked
    finally:
        for name in {GENERATOR, *symbols}:
            tvm_ffi.registry.remove_global_func(name)


def _loops(func: relax.Function, pattern: str) -> tirx.PrimFunc:
    """What the pattern computes of the function's parameters, added up in float32."""
    inputs = [
        te.placeholder([int(size) for size in param.ty.shape], str(param.ty.dtype), f"x{i}")
        for i, param in enumerate(func.params)
    ]
    transposed = "transposed" in pattern
    # TVM puts what is transposed first.
    a, b = (inputs[1], inputs[0]) if transposed else (inputs[0], inputs[1])
    k = te.reduce_axis((0, int(a.shape[-1])), "k")
    dtype = str(func.ret_ty.dtype)

    def product(*place):
        *lead, i, j = place
        right = b[(*lead, j, k)] if transposed else b[(*lead, k, j)]
        return te.sum(a[(*lead, i, k)].astype("float32") * right.astype("float32"), axis=k)

    shape = [int(size) for size in func.ret_ty.shape]
    total = te.compute(shape, product)

    def after(*place):
        value = total(*place)
        if "bias" in pattern:
            value = value + inputs[2][place[-1]].astype("float32")
        if "relu" in pattern:
            value = te.max(value, tirx.const(0, "float32"))
        return value.astype(dtype)

    symbol = str(func.attrs["global_symbol"])
    return te.create_prim_func([*inputs, te.compute(shape, after)]).with_attr(
        "global_symbol", symbol
    )
