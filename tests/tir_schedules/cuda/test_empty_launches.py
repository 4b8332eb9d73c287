"""Kernels of symbolic size, run with nothing to compute: a driver refuses a grid without blocks."""

import numpy as np
import pytest
import tvm
from cuda_kernels import scheduled
from emulated_kernels import emulated
from lowering import kernel_of
from tvm import relax, tirx

from tvm_ext.tir_schedules.cuda.generic import Generic
from tvm_ext.tir_schedules.cuda.matmul.contraction import CudaContraction
from tvm_ext.tir_schedules.template import Template

N = tirx.Var("n", "int64")


def product() -> tirx.PrimFunc:
    return kernel_of(relax.op.matmul, ((N, 40), "float32"), ((40, 24), "float32"))


def elements() -> tirx.PrimFunc:
    return kernel_of(relax.op.exp, ((N, 40), "float32"))


@pytest.mark.parametrize(
    ("template", "kernel", "widths"),
    [(CudaContraction(), product, (40, 24)), (Generic(), elements, (40, 40))],
    ids=["with barriers", "without"],
)
def test_nothing_is_launched(template: Template, kernel: object, widths: tuple[int, int]) -> None:
    run = emulated({"kernel": scheduled(template, kernel())})["kernel"]  # type: ignore[operator]
    for count in (0, 3):
        x = np.ones((count, widths[0]), "float32")
        result = tvm.runtime.tensor(np.full((count, widths[1]), -1.0, "float32"))
        weights = [tvm.runtime.tensor(np.ones((40, 24), "float32"))] if widths[1] == 24 else []
        run(tvm.runtime.tensor(x), *weights, result)
        expected = x @ np.ones((40, 24), "float32") if weights else np.exp(x)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5)
