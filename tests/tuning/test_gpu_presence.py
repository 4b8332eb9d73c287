"""Whether there is a GPU to tune on, and what is said where there is none that fits."""

import pytest
from fake_gpu import gpu

from tvm_ext.tuning import gpu_presence
from tvm_ext.tuning.errors import TuningError
from tvm_ext.tuning.gpu_presence import GpuFacts, checked_gpu, runs_code_for
from tvm_ext.tuning.run_device import RunDeviceAddress
from tvm_ext.tuning.worker import WorkerDied

A100 = GpuFacts(True, "NVIDIA A100", "8.0")
SERVER = RunDeviceAddress("127.0.0.1", 9190, "far")


@pytest.fixture
def answer(monkeypatch):
    """Has the driver say something, or fail."""

    def say(facts):
        def asked(address):
            if isinstance(facts, Exception):
                raise facts
            return facts

        monkeypatch.setattr(gpu_presence, "_asked", asked)

    return say


@pytest.mark.parametrize(
    ("capability", "arch", "runs"),
    [
        *(("8.0", "sm_80", True), ("9.0", "sm_80", True), ("8.0", "sm_86", False)),
        *(("9.0", "sm_90a", True), ("10.0", "sm_90a", False), ("8.9", "sm_90a", False)),
        *(("10.3", "sm_100f", True), ("12.0", "sm_100f", False), ("12.0", "sm_100", True)),
    ],
)
def test_which_code_runs_where(capability, arch, runs):
    assert runs_code_for(capability, arch) == runs


def test_a_gpu_that_fits(answer):
    answer(A100)
    assert checked_gpu(gpu("nvidia-a100"), ()) == A100


def test_no_gpu(answer):
    answer(GpuFacts(False))
    with pytest.raises(TuningError, match=r"no CUDA device here .*'tvm-ext worker' on a machine"):
        checked_gpu(gpu(), ())
    with pytest.raises(TuningError, match=r"no CUDA device on the RPC server with key 'far'"):
        checked_gpu(gpu(), [SERVER])


def test_an_older_gpu(answer):
    answer(A100)
    words = r"the GPU here \(NVIDIA A100, compute capability 8.0\) does not run .* \(sm_90a\)"
    with pytest.raises(TuningError, match=words):
        checked_gpu(gpu("nvidia-h200"), ())


def test_a_driver_that_fails(answer):
    answer(WorkerDied("the process died of SIGSEGV"))
    with pytest.raises(TuningError, match=r"cannot be asked what it is \(.*SIGSEGV\)"):
        checked_gpu(gpu(), ())
    assert not gpu_presence.has_gpu()
