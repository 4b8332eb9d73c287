"""Kernels that cuBLAS can compute, with a stand-in for it: numbers, refusals, records."""

import numpy as np
import pytest
import tvm
from cublas_stand_in import cublas_stand_in
from cuda_kernels import SERIAL_TARGET
from lowering import _filled, kernel_of
from tvm import relax, te, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.cuda.cublas import CublasMatmul, library_modules
from tvm_ext.tir_schedules.recorded_schedule import RecordedSchedule
from tvm_ext.tir_schedules.schedule_kernels import accepting_templates, schedule_kernel

GPU = resolve_target("nvidia-h200")
matmul, add, relu = relax.op.matmul, relax.op.add, relax.op.nn.relu
A, B, BIAS = ((24, 40), "float16"), ((40, 16), "float16"), ((16,), "float16")


def rounded(value):
    return relax.op.astype(value, "float16")


def wide(a, b):
    return matmul(a, b, out_dtype="float32")


def transposed(first: bool, second: bool) -> tirx.PrimFunc:
    """A product whose first or second operand lies across in memory."""
    a = te.placeholder((40, 24) if first else (24, 40), "float16", "a")
    b = te.placeholder((16, 40) if second else (40, 16), "float16", "b")
    k = te.reduce_axis((0, 40), "k")

    def product(i, j):
        return te.sum((a[k, i] if first else a[i, k]) * (b[j, k] if second else b[k, j]), axis=k)

    return te.create_prim_func([a, b, te.compute((24, 16), product)])


def squared() -> tirx.PrimFunc:
    """A product whose operands are one array."""
    a = te.placeholder((24, 24), "float16", "a")
    k = te.reduce_axis((0, 24), "k")
    product = te.compute((24, 24), lambda i, j: te.sum(a[i, k] * a[k, j], axis=k))
    return te.create_prim_func([a, product])


KERNELS = {
    "cublas.matmul": lambda: kernel_of(matmul, A, B),
    "cublas.matmul of rows in several dimensions": lambda: kernel_of(
        matmul, ((3, 8, 40), "float16"), ((40, 16), "float16")
    ),
    "cublas.matmul in batches": lambda: kernel_of(
        matmul, ((3, 8, 40), "float32"), ((3, 40, 16), "float32")
    ),
    "cublas.matmul of wide sums": lambda: kernel_of(lambda a, b: rounded(wide(a, b)), A, B),
    "cublas.matmul_transposed": lambda: transposed(False, True),
    "cublas.matmul_bias": lambda: kernel_of(
        lambda a, b, c: add(rounded(wide(a, b)), c), A, B, BIAS
    ),
    "cublas.matmul_bias_relu": lambda: kernel_of(
        lambda a, b, c: relu(add(matmul(a, b), c)), A, B, BIAS
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_numbers(name: str) -> None:
    func = KERNELS[name]()
    with cublas_stand_in() as asked:
        found = apply_template(CublasMatmul(), func, GPU)
        assert isinstance(found, ScheduledKernel), found
        kernel = tvm.IRModule({"main": found.func.with_attr("global_symbol", "main")})
        (library,) = library_modules(kernel)
        assert asked == [name.split()[0]]
        built = tvm.compile(kernel, target=SERIAL_TARGET)
        built.mod.import_module(library)
        generator = np.random.default_rng(0)
        params = [p for p in func.params if isinstance(p.ty, tirx.BufferType)]
        arrays = [_filled(param, generator) for param in params]
        results = []
        plain = tvm.compile(func.with_attr("global_symbol", "main"), target=SERIAL_TARGET)
        for one in (built, plain):
            tensors = [tvm.runtime.tensor(array) for array in arrays]
            one["main"](*tensors)
            results.append(tensors[-1].numpy().astype("float32"))
    tolerance = 2e-2 if "float16" in str(params[0].dtype) else 1e-4
    assert np.abs(results[0] - results[1]).max() <= tolerance * np.abs(results[1]).max()


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (lambda: transposed(True, False), "first operand does not lie in memory row by row"),
        (squared, "it reads 1 operands"),
        (lambda: kernel_of(lambda a, b: relax.op.exp(matmul(a, b)), A, B), "no epilogue of cuBLAS"),
        (lambda: kernel_of(lambda a, b: relu(matmul(a, b)), A, B), "no epilogue of cuBLAS"),
        (
            lambda: kernel_of(matmul, ((24, 40), "bfloat16"), ((40, 16), "bfloat16")),
            "operands are of bfloat16",
        ),
        (
            lambda: kernel_of(lambda a, b, c: add(matmul(a, b), c), A, B, ((24, 16), "float16")),
            "no epilogue of cuBLAS",
        ),
        (
            lambda: kernel_of(lambda a, b, c: add(matmul(a, b), c), A, B, ((24, 1), "float16")),
            "no epilogue of cuBLAS",
        ),
        (
            lambda: kernel_of(
                relax.op.nn.conv2d, ((1, 8, 9, 9), "float16"), ((4, 8, 3, 3), "float16")
            ),
            "an operand is computed in the kernel",
        ),
    ],
)
def test_refusals(kernel, reason: str) -> None:
    with cublas_stand_in():
        found = apply_template(CublasMatmul(), kernel(), GPU)
    assert isinstance(found, NotApplicable)
    assert reason in found.reason


class Recorded:
    """Records that say that cuBLAS was fastest for every kernel."""

    def find(self, name, func):
        return RecordedSchedule(None, "cublas")


def test_it_is_a_candidate_and_used_where_a_record_says_so() -> None:
    func = kernel_of(matmul, A, B)
    with cublas_stand_in():
        names = [template.name for template in accepting_templates(func, GPU)]
        assert names[-1] == "cublas"
        assert len(names) > 1
        _, choice = schedule_kernel(func, GPU)
        assert choice.schedule == names[0]
        _, choice = schedule_kernel(func, GPU, Recorded())
        assert (choice.schedule, choice.source) == ("cublas", "record")
    assert "cublas" not in [template.name for template in accepting_templates(func, GPU)]
    _, choice = schedule_kernel(func, GPU, Recorded())
    assert choice.source == "template"
    assert choice.miss == "its record does not apply any more: this TVM was built without cuBLAS"
