"""``tvm-ext mlir`` and ``tvm-ext check --against mlir``, and models of which every kernel agrees.

Set TVM_EXT_MLIR_CORPUS to a folder of ONNX models to compare the kernels of those as well.
"""

import os
from pathlib import Path

import onnx
import pytest
from commands import as_json, invoke, refused, succeed
from matmul_kernels import product
from small_models import mlp, rand
from torch_mlir import ir
from tvm import relax, tirx
from tvm_ffi import structural_map

from tvm_ext import mlir
from tvm_ext.mlir import compare_kernels
from tvm_ext.mlir.compare_kernels import check_against_mlir
from tvm_ext.mlir.execution import CompiledKernel
from tvm_ext.mlir.model_kernels import KernelsRequest

CORPUS = sorted(Path(os.environ.get("TVM_EXT_MLIR_CORPUS") or os.devnull).glob("*.onnx"))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("mlir") / "mlp.onnx"
    onnx.save(mlp(), file)
    return file


@pytest.mark.extended
@pytest.mark.parametrize("form", [(), ("--kernels",)], ids=["graph", "kernels"])
@pytest.mark.parametrize("stage", ["linalg", "bufferized", "llvm"])
def test_the_text_of_each_stage_can_be_read_again(path, tmp_path, stage, form):
    written = tmp_path / "mlp.mlir"
    printed = succeed("mlir", path, "--stage", stage, "-o", written, *form)
    assert "In MLIR: " in printed
    assert "(100.0 %)" in printed
    with ir.Context():
        assert ir.Module.parse(written.read_text()).operation.verify()


def test_the_text_of_one_kernel(path):
    names = [one["name"] for one in as_json("mlir", path, "--kernels")["kernels"]]
    printed = succeed("mlir", path, "--kernel", names[0])
    assert f"func.func @{names[0]}(" in printed
    assert "no kernel or ONNX node" in refused("mlir", path, "--kernel", "elsewhere")


@pytest.mark.extended
def test_every_kernel_of_a_model_agrees(path):
    found = as_json("check", path, "--against", "mlir")
    assert found["ok"]
    assert {one["outcome"] for one in found["kernels"]} == {"agrees"}
    assert "TVM's code agrees with MLIR's" in succeed("check", path, "--against", "mlir")


def two_alike():
    """Two products by kernels with the same loops, which become one with their packed weights."""
    kernel = product(32, 64, 64, dtype="float32").without_attr("global_symbol")
    builder, kind = relax.BlockBuilder(), relax.TensorType([32, 64], "float32")
    first = builder.add_func(kernel, "first")
    second = builder.add_func(kernel.with_attr("apart", 1), "second")
    builder.update_func(second, kernel)
    x = relax.Var("x", kind)
    with builder.function("main", [x]):
        y = builder.emit(relax.call_tir(first, [x, relax.const(rand(64, 64))], kind))
        z = builder.emit(relax.call_tir(second, [y, relax.const(rand(64, 64, seed=1))], kind))
        builder.emit_func_output(z)
    return builder.get()


def test_kernels_that_share_their_code_are_compared_once(monkeypatch):
    compiled = []

    class Compiled(CompiledKernel):
        def __init__(self, converted):
            compiled.append(converted)
            super().__init__(converted)

    monkeypatch.setattr(compare_kernels, "CompiledKernel", Compiled)
    found = check_against_mlir(two_alike(), KernelsRequest())
    assert [(one.name, one.outcome) for one in found.kernels] == [
        ("first", "agrees"),
        ("second", "agrees"),
    ]
    assert len(compiled) == 1


@pytest.mark.extended
def test_a_kernel_that_differs_is_named_with_what_is_at_fault(path, monkeypatch):
    def doubled_results(found):
        changed = {one.code: _doubled(one.scheduled) for one in found.kernels}
        return compare_kernels.tvm_code(changed, found.machine)

    monkeypatch.setattr(compare_kernels, "_library", doubled_results)
    result = invoke("check", path, "--against", "mlir")
    assert result.exit_code == 1
    assert "The first that differs is" in result.stdout
    assert "At fault is its schedule" in " ".join(result.stdout.split())


def _doubled(func):
    """The kernel with twice what it stores in its last parameter."""

    def store(stmt):
        if not stmt.buffer.same_as(func.params[-1]):
            return stmt
        return tirx.BufferStore(stmt.buffer, stmt.value + stmt.value, stmt.indices)

    return func.with_body(structural_map(func.body, (tirx.BufferStore, store)))


@pytest.mark.parametrize("option", ["--bisect", "--all-values"])
def test_options_of_whole_models_are_refused(path, option):
    assert "--against mlir" in refused("check", path, "--against", "mlir", option)


def test_without_the_extra_one_line_says_what_to_install(path, monkeypatch):
    monkeypatch.setattr(mlir, "has_mlir", lambda: False)
    for command in (("mlir", path), ("check", path, "--against", "mlir")):
        assert "pip install 'tvm-ext[mlir]'" in refused(*command)


def test_another_target_is_refused(path):
    assert "expected a CPU" in refused("mlir", path, "--target", "nvidia-h100")


@pytest.mark.slow
@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_models_of_the_corpus(path):
    found = check_against_mlir(path, KernelsRequest())
    assert found.ok, found.to_text()
    assert found.count("not converted") <= 0.1 * len(found.kernels)
