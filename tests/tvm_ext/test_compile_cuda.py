"""Models compiled for GPUs on a machine without one: CUDA code, and the templates in the report."""

import numpy as np
import onnx
import pytest
from small_models import mlp, model, node, rand, value

import tvm_ext


def attention_block() -> onnx.ModelProto:
    """Layer normalisation, a transpose, products, a softmax, a GELU and a residual."""
    nodes = [
        node("LayerNormalization", ["x", "scale", "shift"], ["n"], axis=-1),
        node("Transpose", ["n"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["n", "t"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "n"], ["a"]),
        node("Add", ["a", "x"], ["r"]),
        node("Transpose", ["r"], ["turned"], perm=[0, 2, 1]),
        node("ReduceMean", ["turned"], ["z"], axes=[2], keepdims=0),
    ]
    return model(
        nodes,
        [value("x", [2, 40, 64])],
        [value("z", [2, 64]), value("turned", [2, 64, 40])],
        scale=rand(64),
        shift=np.zeros(64, "float32"),
    )


def cuda_code(compiled: tvm_ext.CompiledModel) -> str:
    """The CUDA code of all kernels of a model."""
    modules = [compiled._program.mod]
    sources = []
    while modules:
        module = modules.pop()
        modules += list(module.imports)
        if module.kind == "cuda":
            sources.append(module.inspect_source())
    return "\n".join(sources)


@pytest.mark.parametrize("target", ["nvidia-a100", "nvidia-h100"])
def test_templates_are_in_the_report(target: str) -> None:
    compiled = tvm_ext.compile(attention_block(), target=target)
    found = {kernel.schedule for kernel in compiled.report.kernels if kernel.source == "template"}
    assert {"row reduction", "transpose"} <= found
    assert all(kernel.source != "as written" for kernel in compiled.report.kernels)
    code = cuda_code(compiled)
    assert code.count("__global__") >= 2 * len(compiled.report.kernels) - 2
    assert "__shfl" in code
    assert "float4" in code


def test_products_go_to_the_contraction() -> None:
    compiled = tvm_ext.compile(mlp(4), target="cuda")
    assert "contraction" in {kernel.schedule for kernel in compiled.report.kernels}
    assert "__shared__" in cuda_code(compiled)


def test_products_of_open_sizes_are_bound_and_say_why_no_template_took_them() -> None:
    compiled = tvm_ext.compile(mlp("N"), target="cuda")
    rest = [kernel for kernel in compiled.report.kernels if kernel.source == "tvm rule"]
    for product in rest:
        assert any(refusal.startswith("contraction: ") for refusal in product.refusals)
    assert "threadIdx.x" in cuda_code(compiled)
