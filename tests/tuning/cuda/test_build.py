"""Builds for a GPU that end before there is code for the device, and plain kernels."""

from contextlib import contextmanager

import numpy as np
import pytest
import tvm
from matmul_kernels import product
from serial_gpu import gpu, softmax_task
from small_kernels import add_task, matmul_task
from tvm import te

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.cuda.compilers import VARIABLE, find_nvcc
from tvm_ext.hardware.cuda.resources import Launch, ResourceLimitError
from tvm_ext.hardware.cuda.runtime_library import cuda_runtime_present
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.matmul.contraction import CudaContraction
from tvm_ext.tuning.backend import tuning_of
from tvm_ext.tuning.candidate import kernel_task, plain_json
from tvm_ext.tuning.cuda.build import CudaBuildCheck, _Building
from tvm_ext.tuning.jobs import ExpectedJob, build, build_job
from tvm_ext.tuning.references import References, plain_kernel, with_wide_sums
from tvm_ext.tuning.runner import RunDeviceAddress, Runner
from tvm_ext.tuning.session_options import Limits
from tvm_ext.tuning.worker import WorkRaised

GPU = gpu()


@pytest.fixture(scope="module")
def contraction() -> tvm.IRModule:
    """A product by tensor cores: 38,912 bytes of dynamic shared memory, 128 threads."""
    found = apply_template(CudaContraction(), product(512, 512, 512), GPU)
    return tvm.IRModule({"main": found.func.with_attr("global_symbol", "main")})


def built(mod, folder, **limits):
    target = plain_json(dict(GPU.tvm_target().export()))
    check = CudaBuildCheck(gpu(**limits))
    build(build_job(mod, target, str(folder / "kernel.so"), check))


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_threads_per_block": 64}, "threads; at most 64"),
        ({"dynamic_shared_memory_bytes": 20_000}, "bytes of shared memory; at most 20000"),
        ({"registers_per_block": 2048}, "registers in each of 128 threads"),
    ],
)
def test_what_a_block_cannot_have(contraction, tmp_path, limits, words, monkeypatch):
    if "registers_per_block" in limits:
        if find_nvcc() is None:
            pytest.skip("nvcc is not installed")
        monkeypatch.setenv(VARIABLE, "nvcc")
    with pytest.raises(ResourceLimitError, match=words):
        built(contraction, tmp_path, **limits)
    assert not (tmp_path / "kernel.so").exists()


@pytest.mark.skipif(find_nvcc() is None, reason="nvcc is not installed")
def test_what_a_block_can_have(contraction, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "nvcc")
    built(contraction, tmp_path)
    library = (tmp_path / "kernel.so").read_bytes()
    # A machine with a GPU needs no compiler for it.
    assert cuda_runtime_present() or b"// tvm-ext device code: fatbin sm_80" in library


def test_registers_are_counted_by_kernel():
    """Many registers in a few threads, and many threads with a few registers: both can run."""
    building = _Building(CudaBuildCheck(GPU))
    building.look_at([Launch("sums", 128, 0, 0), Launch("total", 1024, 0, 0)])
    line = "Compiling entry function '{}' for 'sm_80'\n Used {} registers\n"
    building.read(line.format("sums", 250) + line.format("total", 32))
    with pytest.raises(ResourceLimitError, match="250 registers in each of 1024 threads"):
        building.read(line.format("sums", 32) + line.format("total", 250))


def test_a_reference_that_fails_takes_its_process_along(tmp_path):
    """After an address that is not mapped, every later call of the process fails."""
    stopped = []

    class Failing:
        def call(self, function, *arguments, timeout):
            raise WorkRaised("RuntimeError", "CUDA Runtime Error: cudaErrorIllegalAddress (700)")

        def stop(self):
            stopped.append(True)

    class Runners:
        is_remote, kind = False, "cuda"

        @contextmanager
        def lent(self):
            yield Runner(Failing(), RunDeviceAddress(kind="cuda"))

    made = References(GPU, {}, Limits(), 0, None, Runners(), lambda end: tmp_path / end)
    with pytest.raises(WorkRaised, match="IllegalAddress"):
        made._compute(ExpectedJob("k.so", (), "data", RunDeviceAddress()), 1.0, is_here=False)
    assert stopped


def test_cpus_are_not_checked():
    assert tuning_of(host_description()).build_check(host_description(), True) is None


def test_sums_of_half_precision_are_added_up_in_float32(tmp_path):
    """A sum of 4,096 float16 numbers that is rounded at each step would be off by per cents."""
    x = te.placeholder((4, 4096), "float16", "x")
    k = te.reduce_axis((0, 4096), "k")
    func = te.create_prim_func([x, te.compute((4,), lambda i: te.sum(x[i, k], axis=k))])
    wide = with_wide_sums(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    data = np.random.default_rng(0).random((4, 4096)).astype(np.float16)
    right = data.astype(np.float64).sum(1)
    found = {}
    for name, mod in {"narrow": tvm.IRModule({"main": func}), "wide": wide}.items():
        library = tvm.compile(mod, target=host_description().tvm_target())
        result = tvm.runtime.tensor(np.zeros(4, np.float16))
        library["main"](tvm.runtime.tensor(data), result)
        found[name] = np.abs(result.numpy() / right - 1).max()
    assert found["wide"] < 1e-3
    assert found["narrow"] > 10 * found["wide"]


def test_other_sums_stay_as_they_are():
    for task in (matmul_task(), softmax_task()):
        tvm.ir.assert_structural_equal(with_wide_sums(task.workload), task.workload)


def test_small_kernels_are_computed_here_and_large_ones_on_the_gpu():
    small = plain_kernel(add_task(), GPU)
    assert (small.is_here, small.target["kind"]) == (True, "llvm")
    large = plain_kernel(kernel_task("large", product(2048, 2048, 2048)), GPU)
    assert (large.is_here, large.target["kind"]) == (False, "cuda")
    assert "blockIdx.x" in large.mod.script()
    on_cpu = plain_kernel(add_task(), host_description())
    assert (on_cpu.is_here, on_cpu.target["kind"]) == (False, "llvm")
