"""Kernels for each template of CUDA, small enough for the emulator."""

import numpy as np
from lowering import f32, kernel_of
from matmul_kernels import f16, linear, product
from tvm import relax
from tvm.relax.op import nn

from tvm_ext.tir_schedules.cuda.elementwise import CudaElementwise
from tvm_ext.tir_schedules.cuda.row_reduction import RowReduction
from tvm_ext.tir_schedules.cuda.transpose import CudaTranspose

op = relax.op


SMALL = {"tile_rows": 32, "tile_columns": 32, "warp_rows": 16, "warp_columns": 32}


MATMULS = {
    "float16": (product(32, 48, 96, written="float16"), {**SMALL, "stages": 3}),
    "transposed": (product(32, 48, 64, a_transposed=True, b_transposed=True), SMALL),
    "bfloat16": (product(32, 48, 64, dtype="bfloat16", b_transposed=True), SMALL),
    "int8": (product(32, 48, 96, dtype="int8", total="int32", b_transposed=True), SMALL),
    "int8 across": (product(32, 48, 64, dtype="int8", total="int32"), SMALL),
    "padded": (product(45, 51, 77), SMALL),
    "predicated copies": (product(40, 56, 72), {**SMALL, "stages": 4, "tile_depth": 16}),
    "float32": (product(40, 36, 20, dtype="float32"), {"stages": 2}),
    "bias": (kernel_of(linear, f16(40, 64), f16(64, 48), f16(48)), {**SMALL, "stages": 2}),
}


def tf32(x: np.ndarray, rounded: bool) -> np.ndarray:
    """float32 values without their last 13 bits, the nearest ones or cut off."""
    half_a_step = np.uint32(0x1000 if rounded else 0)
    return ((x.view("uint32") + half_a_step) & np.uint32(0xFFFFE000)).view("float32")


ROWS = {
    "warp": (lambda x: nn.softmax(x, 1), f32(9, 132)),
    "block": (lambda x: nn.softmax(x, 1), f32(2, 2050)),
    "columns": (lambda x: nn.softmax(x, 0), f32(37, 30)),
    "argmax": (lambda x: op.argmax(x, 1), f32(3, 700)),
    "layer norm": (lambda x, g, b: nn.layer_norm(x, g, b, [-1]), f32(2, 768), f32(768), f32(768)),
    "half": (lambda x: nn.softmax(x, 1), f16(3, 264)),
}


TRANSPOSES = {
    "plain": (op.permute_dims, f32(33, 45)),
    "int8": (op.permute_dims, ((33, 70), "int8")),
    "to nhwc": (lambda x: op.permute_dims(x, [0, 2, 3, 1]), f32(2, 17, 5, 7)),
    "with bias": (lambda x, b: nn.relu(op.add(op.permute_dims(x), b)), f32(40, 33), f32(40)),
    "padded": (
        lambda x: nn.pad(op.permute_dims(x, [0, 3, 1, 2]), [0, 0, 0, 0, 1, 1, 2, 1]),
        f32(1, 9, 11, 20),
    ),
    "beside another": (
        lambda x, y: op.concat([op.permute_dims(x), y], 0),
        *(f32(40, 33), f32(17, 40)),
    ),
}


POINTWISE = {
    "wide": (op.add, f32(13, 50, 12), f32(12)),
    "odd": (nn.gelu, f32(3, 7, 11)),
    "half": (op.multiply, f16(9, 24), f16(9, 24)),
    "int64": (op.add, ((5, 9), "int64"), ((5, 9), "int64")),
}


def _half(*shape: int) -> tuple:
    return shape, "float16"


def _brain(*shape: int) -> tuple:
    return shape, "bfloat16"


def _norm(x: relax.Expr, g: relax.Expr, b: relax.Expr) -> relax.Expr:
    return nn.layer_norm(x, g, b, [-1])


def _softmax(x: relax.Expr) -> relax.Expr:
    return nn.softmax(x, -1)


KERNELS_OF_MODELS = [
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
