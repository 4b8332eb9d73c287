"""Programs whose kernels MLIR generated: their numbers, and what they need later."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from commands import refused
from small_models import assert_mlp, mlp, mlp_reference, model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext import mlir
from tvm_ext.errors import ConfigError
from tvm_ext.mlir.code_generation import _as_tvm_reads
from tvm_ext.passes.pipeline import with_code_generator

BY_MLIR = {"MlirCodeGeneration": {"enabled": True}}


@pytest.fixture(scope="module")
def compiled():
    return tvm_ext.compile(mlp(), HOST, pass_config=BY_MLIR)


def test_the_numbers_are_the_same(compiled):
    assert_mlp(compiled, rand(5, 6))


def test_the_report_names_the_kernels(compiled):
    (done,) = [one for one in compiled.report.passes if one.name == "MlirCodeGeneration"]
    assert done.applied >= 2


@pytest.mark.extended
def test_a_saved_model_needs_no_mlir(compiled, tmp_path):
    compiled.save(tmp_path / "mlp.tvmx")
    x = rand(5, 6)
    np.save(tmp_path / "x.npy", x)
    script = (
        "import sys, numpy as np; sys.modules['torch_mlir'] = None; import tvm_ext;"
        f"model = tvm_ext.load(r'{tmp_path}/mlp.tvmx');"
        f"np.save(r'{tmp_path}/y.npy', model.run({{'x': np.load(r'{tmp_path}/x.npy')}})['z'])"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    np.testing.assert_allclose(
        np.load(tmp_path / "y.npy"), mlp_reference(x)["z"], rtol=1e-5, atol=1e-6
    )


def test_numbers_are_written_as_tvms_llvm_reads_them():
    assert _as_tvm_reads("fmul float %1, f0x3F800000") == "fmul float %1, 0x3FF0000000000000"
    assert _as_tvm_reads("fadd half %1, f0x3C00") == "fadd half %1, 0xH3C00"
    assert _as_tvm_reads("fadd bfloat %1, f0x3F80") == "fadd bfloat %1, 0xR3F80"
    assert _as_tvm_reads("fadd double %1, f0x3FF0000000000000").endswith("0x3FF0000000000000")


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        ("store float +inf, ptr %0", "store float 0x7FF0000000000000, ptr %0"),
        ("store float -inf, ptr %0", "store float 0xFFF0000000000000, ptr %0"),
        ("phi float [ -inf, %1 ], [ %2, %3 ]", "phi float [ 0xFFF0000000000000, %1 ], [ %2, %3 ]"),
        ("store float +qnan, ptr %0", "store float 0x7FF8000000000000, ptr %0"),
        ("store float +nan(0x12), ptr %0", "store float 0x7FF8000240000000, ptr %0"),
        ("store double -inf, ptr %0", "store double 0xFFF0000000000000, ptr %0"),
        ("store half +inf, ptr %0", "store half 0xH7C00, ptr %0"),
        ("store bfloat -qnan, ptr %0", "store bfloat 0xRFFC0, ptr %0"),
        ("%inf = add i32 %0, 1", "%inf = add i32 %0, 1"),
        ("splat (float 2.000000e-01)", "splat (float 0x3FC99999A0000000)"),
        ("fmul half %0, -1.000000e-01", "fmul half %0, 0xHAE66"),
        ("fmul bfloat %0, 5.000000e-01", "fmul bfloat %0, 0xR3F00"),
        ("fmul double %0, 2.000000e-01", "fmul double %0, 2.000000e-01"),
    ],
)
def test_other_numbers_are_written_by_their_bits(newer, older):
    assert _as_tvm_reads(newer) == older


def test_a_program_with_infinities():
    nodes = [node("ReduceMin", ["x"], ["y"], axes=[1], keepdims=0)]
    source = model(nodes, [value("x", [4, 9])], [value("y", [4])])
    x = rand(4, 9)
    found = tvm_ext.compile(source, HOST, pass_config=BY_MLIR).run({"x": x})
    np.testing.assert_array_equal(found["y"], x.min(axis=1))


def test_another_generator_is_refused():
    with pytest.raises(ConfigError, match="the code generator is 'gcc'"):
        with_code_generator(None, "gcc")


def test_without_the_extra_the_option_says_what_to_install(tmp_path, monkeypatch):

    onnx.save(mlp(), tmp_path / "mlp.onnx")
    monkeypatch.setattr(mlir, "has_mlir", lambda: False)
    found = refused("compile", tmp_path / "mlp.onnx", "--codegen", "mlir")
    assert "pip install 'tvm-ext[mlir]'" in found
