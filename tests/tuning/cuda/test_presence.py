"""Whether there is a GPU to tune on, and what is said where there is none that fits."""

import pytest
from serial_gpu import gpu

from tvm_ext.configs.errors import TuningError
from tvm_ext.tuning.cuda import presence as gpu_presence
from tvm_ext.tuning.cuda.presence import CudaDeviceFacts, checked_gpu
from tvm_ext.tuning.runner import RunDeviceAddress
from tvm_ext.tuning.worker import WorkerDied

A100 = CudaDeviceFacts(True, "NVIDIA A100", (8, 0))
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


def test_a_gpu_that_fits(answer):
    answer(A100)
    assert checked_gpu(gpu("nvidia-a100"), ()) == A100


def test_no_gpu(answer):
    answer(
        CudaDeviceFacts(False, problem="no NVIDIA driver was found (x); expected one: install it")
    )
    with pytest.raises(TuningError, match=r"on \(no NVIDIA driver was found \(x\)\); expected an"):
        checked_gpu(gpu(), ())
    answer(CudaDeviceFacts(False))
    with pytest.raises(
        TuningError, match=r"no CUDA device here .*'tvm-ext rpc-server' on a machine"
    ):
        checked_gpu(gpu(), ())
    with pytest.raises(TuningError, match=r"no CUDA device on the RPC server with key 'far'"):
        checked_gpu(gpu(), [SERVER])


def test_an_older_gpu(answer):
    answer(A100)
    words = r"the GPU here \(NVIDIA A100, compute capability 8.0\) does not run .* \(sm_90a\);"
    with pytest.raises(TuningError, match=words):
        checked_gpu(gpu("nvidia-h200"), ())


def test_a_driver_that_fails(answer):
    answer(WorkerDied("the process died of SIGSEGV"))
    with pytest.raises(TuningError, match=r"cannot be queried \(.*SIGSEGV\)"):
        checked_gpu(gpu(), ())
    assert not gpu_presence.has_gpu()
