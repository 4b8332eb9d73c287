"""How CUDA code becomes device code: compilers, what travels in a saved model, refusals."""

import shutil
import sys

import pytest
import tvm
from small_models import mlp

import tvm_ext
from tvm_ext.errors import BuildError
from tvm_ext.hardware.cuda import compilers
from tvm_ext.hardware.cuda.compilers import find_nvcc, find_nvrtc
from tvm_ext.hardware.cuda.device_code import _compile, embed, embedded, making_device_code

KERNEL = """
#include <cuda_fp16.h>
extern "C" __global__ void twice(half* x) { x[threadIdx.x] = x[threadIdx.x] + x[threadIdx.x]; }
"""

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
needs_nvrtc = pytest.mark.skipif(find_nvrtc() is None, reason="NVRTC is not installed")


class Compiler:
    """Notes what it is asked for."""

    name = "compiler 1.0"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def form(self, arch: str) -> str:
        return "cubin"

    def compile(self, code: str, arch: str) -> bytes:
        self.asked.append(arch)
        return bytes(range(256))


@pytest.fixture
def compiler(monkeypatch) -> Compiler:
    """The only one that is installed."""
    one = Compiler()
    monkeypatch.setenv(compilers.VARIABLE, "")
    monkeypatch.setattr(compilers, "_installed", lambda wanted: one)
    return one


def test_what_is_embedded_comes_out_again() -> None:
    binary = bytes(range(256)) * 3
    code = embed(KERNEL, binary, "sm_90a", "cubin")
    assert embedded(code) == binary
    assert code.endswith(KERNEL)
    assert embedded(KERNEL) is None


@needs_nvcc
@pytest.mark.parametrize(
    ("arch", "form", "start"), [("sm_80", "fatbin", b"P"), ("sm_90a", "cubin", b"\x7fELF")]
)
def test_nvcc(arch: str, form: str, start: bytes) -> None:
    nvcc = find_nvcc()
    assert nvcc is not None
    assert nvcc.form(arch) == form
    binary = nvcc.compile(KERNEL, arch)
    assert binary.startswith(start)
    assert b"twice" in binary
    with pytest.raises(BuildError, match=r"nvcc refuses the code for sm_80 \(.*undefined.*\); exp"):
        nvcc.compile("__global__ void f() { g(); }", "sm_80")


@needs_nvrtc
def test_nvrtc() -> None:
    nvrtc = find_nvrtc()
    assert nvrtc is not None
    binary = nvrtc.compile(KERNEL, "sm_90a")
    assert binary.startswith(b"\x7fELF")
    assert b"twice" in binary
    with pytest.raises(
        BuildError, match=r"NVRTC refuses the code for sm_80 \(.*undefined.*\); exp"
    ):
        nvrtc.compile("__global__ void f() { g(); }", "sm_80")


def test_without_a_driver_device_code_travels_with_the_source(compiler: Compiler, tmp_path) -> None:
    model = tvm_ext.compile(mlp(4), target="nvidia-h200")
    if tvm.cuda().exist:
        pytest.skip("with a driver TVM takes the device code itself")
    assert compiler.asked == ["sm_90a"]
    assert (model.report.device.code, model.report.device.compiler) == ("cubin", "compiler 1.0")
    (host,) = model._program._program.mod.imports
    (kernels,) = host.imports
    assert embedded(kernels.inspect_source()) == bytes(range(256))
    # What TVM calls when it loads the module where there is a driver.
    with making_device_code("sm_90a"):
        assert _compile(kernels.inspect_source()) == bytes(range(256))
    assert compiler.asked == ["sm_90a"]
    model.save(tmp_path / "m.tvmx")
    assert tvm_ext.load(tmp_path / "m.tvmx").report.device == model.report.device


def test_without_a_compiler_the_source_is_kept(monkeypatch) -> None:
    monkeypatch.setenv(compilers.VARIABLE, "none")
    model = tvm_ext.compile(mlp(4), target="nvidia-a100")
    record = model.report.device
    assert (record.arch, record.code, record.compiler) == ("sm_80", "source", "")
    with making_device_code("sm_80"), pytest.raises(RuntimeError, match="is 'none'; expected a"):
        _compile(KERNEL)


def test_other_users_of_tvm_get_what_tvm_does(monkeypatch) -> None:
    with making_device_code("sm_80"):
        pass
    monkeypatch.setattr(
        "tvm_ext.hardware.cuda.device_code.compile_cuda_by_tvm", lambda code: b"theirs"
    )
    compile_code = tvm.get_global_func("tvm_callback_cuda_compile")
    assert bytes(compile_code(KERNEL)) == b"theirs"
    target = tvm.target.Target("cuda")
    assert tvm.get_global_func("tvm_callback_cuda_postproc")(KERNEL, target) == KERNEL


@pytest.mark.parametrize(
    ("setting", "words"),
    [("gcc", "is 'gcc'; expected one of nvcc"), ("nvrtc", "is 'nvrtc', which is not installed")],
)
def test_the_variable_is_checked(monkeypatch, setting: str, words: str) -> None:
    monkeypatch.setenv(compilers.VARIABLE, setting)
    monkeypatch.setattr(compilers, "_installed", lambda wanted: None)
    with pytest.raises(BuildError, match=words):
        compilers.find_compiler()


@pytest.mark.skipif(sys.platform == "win32", reason="the folders are those of Linux")
def test_what_is_missing_is_named(monkeypatch) -> None:
    monkeypatch.setenv(compilers.VARIABLE, "")
    monkeypatch.setattr(compilers, "_installed", lambda wanted: None)
    assert "neither nvcc nor NVRTC" in compilers.missing_compilers()
