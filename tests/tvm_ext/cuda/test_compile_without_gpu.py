"""Models compiled for GPUs on a machine without one: CUDA code, and the templates in the report."""

import re

import numpy as np
import onnx
import pytest
from attention_models import attention_block
from small_models import mlp, model, node, value
from tvm import s_tir, tirx

import tvm_ext
import tvm_ext.errors
from tvm_ext.tir_schedules.cuda.elementwise import CudaElementwise


def cuda_code(compiled: tvm_ext.CompiledModel) -> str:
    """The CUDA code of all kernels of a model."""
    modules = [compiled._program._program.mod]
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
    code = cuda_code(compiled)
    assert "__shared__" in code
    # One block alone may have all registers: the assembler spills none for occupancy.
    assert re.search(r"__launch_bounds__\(\d+, 1\)", code)


def test_float32_keeps_its_bits_unless_tf32_is_asked_for() -> None:
    plain = tvm_ext.compile(mlp(4), target="nvidia-a100")
    short = tvm_ext.compile(mlp(4), target="nvidia-a100", tf32=True)
    assert "mma.sync" not in cuda_code(plain)
    assert ".f32.tf32.tf32.f32" in cuda_code(short)
    assert short.report.target["tf32"] is True
    with pytest.raises(tvm_ext.errors.TargetError, match="leave it out"):
        tvm_ext.compile(mlp(4), tf32=True)


def test_products_of_symbolic_sizes_are_bound_and_say_why_no_template_took_them() -> None:
    compiled = tvm_ext.compile(mlp("N"), target="cuda")
    rest = [kernel for kernel in compiled.report.kernels if kernel.source == "tvm rule"]
    for product in rest:
        assert any(refusal.startswith("contraction: ") for refusal in product.refusals)
    assert "threadIdx.x" in cuda_code(compiled)


def test_sorts_of_known_sizes_have_a_template_of_ours() -> None:
    def schedules(rows: int | str) -> set[str]:
        nodes = [node("TopK", ["x", "k"], ["v", "i"]), node("Add", ["v", "v"], ["y"])]
        places = value("i", [rows, 5], onnx.TensorProto.INT64)
        outputs = [value("y", [rows, 5]), places]
        found = model(nodes, [value("x", [rows, 300])], outputs, k=np.array([5]))
        kernels = tvm_ext.compile(found, target="nvidia-h100").report.kernels
        return {kernel.schedule for kernel in kernels}

    assert "sort" in schedules(4)
    assert "sort" not in schedules("N"), "TVM's"


def test_schedule_without_code_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_wide(_: object, func: tirx.PrimFunc, machine: object, decisions: object) -> object:
        sch = s_tir.Schedule(func)
        (block,) = sch.get_child_blocks(sch.get_sblock("root"))
        outer, inner = sch.split(sch.fuse(*sch.get_loops(block)), factors=[None, 64])
        sch.bind(outer, "threadIdx.x")
        sch.vectorize(inner)
        return sch

    monkeypatch.setattr(CudaElementwise, "apply", too_wide)
    found = model([node("Add", ["x", "x"], ["y"])], [value("x", [8, 64])], [value("y", [8, 64])])
    (kernel,) = tvm_ext.compile(found, target="nvidia-h100").report.kernels
    assert (kernel.schedule, kernel.source) == ("generic", "generic")
    assert any("elementwise: no code could be generated" in text for text in kernel.refusals)
