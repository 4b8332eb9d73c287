"""Matrix products: square, of few rows, batched, and with a transposed operand."""

from dataclasses import dataclass

import onnx
from onnx import helper

from kernel_models.common import KernelModel, Scale, float_bytes, onnx_model, random_weights

# Below so many rows, reading the weights takes longer than multiplying by them.
_ROWS_TO_BE_BUSY = 8


@dataclass(frozen=True)
class _Product:
    """``batch`` products of [rows, inner] and [inner, columns].

    The right operand is a weight, known when the model is compiled, or an input.
    """

    rows: int
    inner: int
    columns: int
    batch: int = 1
    weights: bool = True
    transposed: bool = False

    def build(self) -> onnx.ModelProto:
        """The model."""
        lead = (self.batch,) if self.batch > 1 else ()
        left, right = (*lead, self.rows, self.inner), (*lead, self.inner, self.columns)
        node = helper.make_node("MatMul", ["a", "b"], ["y"])
        if self.transposed:
            right = (self.columns, self.inner)
            node = helper.make_node("Gemm", ["a", "b"], ["y"], transB=1)
        constants = {"b": random_weights(right, self.inner)} if self.weights else {}
        inputs = {"a": left} if self.weights else {"a": left, "b": right}
        return onnx_model([node], inputs, (*lead, self.rows, self.columns), constants)

    def kernel(self, name: str) -> KernelModel:
        """The record."""
        pairs = (self.rows, self.inner), (self.inner, self.columns), (self.rows, self.columns)
        return KernelModel(
            name,
            "matmul",
            2.0 * self.batch * self.rows * self.inner * self.columns,
            self.batch * float_bytes(*pairs),
            "flops" if self.rows >= _ROWS_TO_BE_BUSY else "bytes",
            self.build,
        )


def matmuls(scale: Scale) -> list[KernelModel]:
    """The group ``matmul``."""
    size = scale.size
    found = {
        "matmul_1024x1024x1024": _Product(size(1024), size(1024), size(1024)),
        "matmul_1008x1024x1024": _Product(size(1008), size(1024), size(1024)),
        "matmul_1x1024x4096": _Product(1, size(1024), size(4096)),
        "matmul_4x1024x4096": _Product(4, size(1024), size(4096)),
        "matmul_16x1024x4096": _Product(16, size(1024), size(4096)),
        "matmul_12x128x64x128": _Product(size(128), size(64), size(128), batch=12, weights=False),
        "matmul_abt_512x768x768": _Product(
            size(512), size(768), size(768), weights=False, transposed=True
        ),
    }
    return [product.kernel(name) for name, product in found.items()]
