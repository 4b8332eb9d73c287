"""Scheduled kernels compute what the plain ones do, on sizes that are not round."""

import numpy as np
import pytest
import tvm
from kernel_cases import CONVOLUTIONS, MATMULS, MOVES, POINTWISE, REDUCTIONS, KernelCase
from lowering import assert_same, f32, kernel_of, kernels_of, run
from thoroughness import one_in
from tvm import relax, tirx
from tvm.relax.op import nn
from unoptimised import built

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

FAMILIES = {
    "convolutions": CONVOLUTIONS,
    "matmuls": MATMULS,
    "reductions": REDUCTIONS,
    "moves": MOVES,
    "pointwise": POINTWISE,
}


@pytest.mark.extended
@pytest.mark.parametrize("family", one_in(2, FAMILIES))
def test_family(family: str) -> None:
    cases: dict[str, KernelCase] = FAMILIES[family]
    plain: dict[str, tirx.PrimFunc] = {}
    for name, case in cases.items():
        for kernel, func in kernels_of(case.expression, *case.inputs).items():
            plain[f"{name}: {kernel}"] = func
    machine = host_description()
    scheduled = {name: schedule_kernel(func, machine)[0] for name, func in plain.items()}
    # Compiled as users' kernels are.
    wanted, found = run(plain), run(scheduled, machine=machine)
    for name in plain:
        assert_same(wanted[name], found[name], name)


@pytest.mark.slow
def test_large_enough_for_threads() -> None:
    plain = {
        "add": kernel_of(relax.op.add, f32(197, 249, 40), f32(197, 249, 40)),
        "bias": kernel_of(relax.op.add, f32(197, 249, 40), f32(249, 1)),
        "join": kernel_of(
            lambda a, b: relax.op.concat([a, b], 2), f32(197, 249, 13), f32(197, 249, 24)
        ),
        "softmax": kernel_of(lambda x: nn.softmax(x, 1), f32(2997, 149)),
        "product": kernel_of(relax.op.matmul, f32(349, 97), f32(97, 80)),
        "argmax": kernel_of(lambda x: relax.op.argmax(x, axis=1), f32(14999, 40)),
    }
    machine = host_description().with_cores(4)
    scheduled = {name: schedule_kernel(func, machine)[0] for name, func in plain.items()}
    assert all("T.parallel" in func.script() for func in scheduled.values())
    wanted, found = run(plain, machine=machine), run(scheduled, machine=machine)
    for name in plain:
        assert_same(wanted[name], found[name], name)


SYMBOLIC = {
    "bias": (lambda x, b: nn.relu(relax.op.add(x, b)), ["n", 24], f32(24)),
    "exp": (relax.op.exp, ["n"]),
    "exp inside": (relax.op.exp, [3, "n"]),
    "dense": (
        lambda x, w, b: nn.gelu(relax.op.add(relax.op.matmul(x, w), b)),
        ["n", 13],
        f32(13, 40),
        f32(40),
    ),
    "conv": (
        lambda x, w: nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="HWIO"),
        ["n", 5, 7, 3],
        f32(3, 3, 3, 24),
    ),
    "softmax": (lambda x: nn.softmax(x, 1), ["n", 19]),
    "sum over n": (lambda x: relax.op.sum(x, axis=[0]), ["n", 24]),
    "argmax": (lambda x: relax.op.argmax(x, axis=1), ["n", 7]),
}


def test_symbolic_batch() -> None:
    machine = host_description()
    symbol = tirx.Var("n", "int64")
    functions: dict[str, tirx.PrimFunc] = {}
    for index, (expression, first, *others) in enumerate(SYMBOLIC.values()):
        shape = [symbol if size == "n" else size for size in first]
        func = kernel_of(expression, (shape, "float32"), *others)
        functions[f"p{index}"] = func.with_attr("global_symbol", f"p{index}")
        scheduled, _ = schedule_kernel(func, machine)
        functions[f"s{index}"] = scheduled.with_attr("global_symbol", f"s{index}")
    library = built(functions)
    for batch in (1, 5, 17):
        for index, name in enumerate(SYMBOLIC):
            plain = _called(library[f"p{index}"], functions[f"p{index}"], batch)
            found = _called(library[f"s{index}"], functions[f"s{index}"], batch)
            assert_same(plain, found, f"{name}, batch {batch}")


def _called(entry: object, func: tirx.PrimFunc, batch: int) -> list[np.ndarray]:
    generator = np.random.default_rng(batch)
    arrays = []
    for param in func.params:
        if isinstance(param.ty, tirx.BufferType):
            shape = [int(s) if isinstance(s, tirx.IntImm) else batch for s in param.shape]
            values = generator.uniform(0.1, 1.0, shape).astype(str(param.dtype))
            arrays.append(tvm.runtime.tensor(values))
    entry(*arrays)  # type: ignore[operator]
    return [array.numpy() for array in arrays]
