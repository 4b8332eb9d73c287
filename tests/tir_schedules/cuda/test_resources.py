"""What nvcc makes of the kernels: they assemble for both generations, nothing is spilled."""

from pathlib import Path

import pytest
from cuda_kernels import needs_nvcc, resources, scheduled, whole_source
from lowering import f32, kernel_of
from tvm import relax
from tvm.relax.op import nn

from tvm_ext.tir_schedules.cuda.elementwise import CudaElementwise
from tvm_ext.tir_schedules.cuda.row_reduction import RowReduction
from tvm_ext.tir_schedules.cuda.transpose import CudaTranspose

op = relax.op

pytestmark = needs_nvcc


def _half(*shape: int) -> tuple:
    return shape, "float16"


def _brain(*shape: int) -> tuple:
    return shape, "bfloat16"


def _norm(x: relax.Expr, g: relax.Expr, b: relax.Expr) -> relax.Expr:
    return nn.layer_norm(x, g, b, [-1])


def _softmax(x: relax.Expr) -> relax.Expr:
    return nn.softmax(x, -1)


KERNELS = [
    (CudaElementwise(), lambda x, b: nn.gelu(op.add(x, b)), (f32(4096, 768), f32(768))),
    (CudaElementwise(), lambda x, b: nn.silu(op.add(x, b)), (_half(4096, 768), _half(768))),
    (CudaElementwise(), lambda x, b: nn.silu(op.add(x, b)), (_brain(4096, 768), _brain(768))),
    (CudaElementwise(), lambda *v: op.concat(list(v), 1), (_half(64, 24), _half(64, 40))),
    (CudaElementwise(), lambda x: op.astype(x, "float32"), (((64, 64), "int8"),)),
    (CudaElementwise(), op.maximum, (((64, 64), "int8"), ((64, 64), "int8"))),
    (CudaElementwise(), op.multiply, (((64, 64), "int64"), ((64, 64), "int64"))),
    (CudaElementwise(), op.where, (((64, 64), "bool"), f32(64, 64), f32(64, 64))),
    (CudaTranspose(), op.permute_dims, (_half(512, 512),)),
    (CudaTranspose(), op.permute_dims, (_brain(500, 50),)),
    (RowReduction(), _softmax, (f32(8192, 512),)),
    (RowReduction(), _softmax, (f32(64, 32768),)),
    (RowReduction(), _softmax, (_half(8192, 1024),)),
    (RowReduction(), _softmax, (_brain(8192, 1024),)),
    (RowReduction(), _norm, (f32(4096, 768), f32(768), f32(768))),
    (RowReduction(), _norm, (_half(4096, 4096), _half(4096), _half(4096))),
    (RowReduction(), lambda x: op.sum(x, axis=[0]), (f32(4096, 512),)),
    (RowReduction(), lambda x: nn.softmax(x, 0), (f32(4096, 512),)),
    (RowReduction(), lambda x: op.argmax(x, 1), (f32(64, 32768),)),
]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_no_spills(arch: str, tmp_path: Path) -> None:
    kernels = [scheduled(template, kernel_of(e, *inputs)) for template, e, inputs in KERNELS]
    found = resources(whole_source(*kernels), arch, tmp_path)
    assert len(found) >= len(KERNELS), "few long rows are shared by several blocks"
    for kernel in found:
        assert kernel.spilled == 0
        assert kernel.stack == 0
        assert kernel.registers <= 128
