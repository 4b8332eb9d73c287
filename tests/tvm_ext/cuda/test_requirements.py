"""What is said of machines that cannot run a model, by the driver's own answers."""

import ctypes

import pytest
from small_models import mlp, rand

import tvm_ext
from tvm_ext.compiler import backend
from tvm_ext.cuda import device_errors as requirements
from tvm_ext.errors import InputError, TargetError
from tvm_ext.hardware.cuda import runtime_library
from tvm_ext.hardware.cuda.compilers import expected_device, runs_on
from tvm_ext.hardware.cuda.host import CudaDevice, DriverState, driver_state, read_state
from tvm_ext.hardware.targets import resolve_target

A100 = ("NVIDIA A100", (8, 0), 80 << 30, 40 << 20, 108, 166_912)


class Driver:
    """A driver library that answers as it is told."""

    def __init__(self, started: int = 0, devices: int = 2) -> None:
        self._started = started
        self._devices = devices

    def cuInit(self, flags: int) -> int:
        return self._started

    def cuDriverGetVersion(self, version) -> int:
        version._obj.value = 12080
        return 0

    def cuGetErrorName(self, code: int, text) -> int:
        text._obj.value = b"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
        return 0

    def cuDeviceGetCount(self, count) -> int:
        count._obj.value = self._devices
        return 0

    def cuDeviceGet(self, device, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name, size: int, device) -> int:
        ctypes.memmove(name, b"NVIDIA A100\0", 12)
        return 0

    def cuDeviceGetAttribute(self, value, attribute: int, device) -> int:
        value._obj.value = {75: 8, 76: 0, 38: 40 << 20, 16: 108, 97: 166_912}[attribute]
        return 0

    def cuDeviceTotalMem_v2(self, size, device) -> int:
        size._obj.value = 80 << 30
        return 0


def test_devices_are_read() -> None:
    state = read_state(Driver())
    assert state == DriverState("", (12, 8), (CudaDevice(*A100),) * 2)
    assert state.devices[0].arch == "sm_80"


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (Driver(started=100), "finds no CUDA device"),
        (Driver(devices=0), "finds no CUDA device"),
        (Driver(started=803), r"cannot be initialised \(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH\)"),
    ],
)
def test_what_stops_the_driver_is_named(driver: Driver, words: str) -> None:
    state = read_state(driver)
    assert not state.devices
    with pytest.raises(ValueError, match=words):
        raise ValueError(state.problem)
    assert "expected" in state.problem
    assert "\n" not in state.problem


@pytest.mark.parametrize(
    ("arch", "form", "capability", "runs"),
    [
        ("sm_80", "cubin", (8, 0), True),
        ("sm_80", "cubin", (8, 9), True),
        ("sm_86", "cubin", (8, 0), False),
        ("sm_80", "cubin", (9, 0), False),
        ("sm_80", "fatbin", (9, 0), True),
        ("sm_80", "source", (12, 0), True),
        ("sm_90", "fatbin", (8, 9), False),
        ("sm_90a", "cubin", (9, 0), True),
        ("sm_90a", "source", (10, 0), False),
        ("sm_120", "cubin", (12, 1), True),
    ],
)
def test_which_device_runs_what(arch, form, capability, runs) -> None:
    assert runs_on(arch, form, capability) is runs
    assert expected_device(arch, form).startswith("a GPU of compute capability")


def use_device(monkeypatch, capability: tuple[int, int]) -> None:
    state = DriverState("", (13, 0), (CudaDevice("Some GPU", capability, 1 << 30),))
    monkeypatch.setattr(requirements, "driver_state", lambda: state)
    monkeypatch.setattr(requirements, "runtime_problem", lambda: "")


def test_a_model_for_another_gpu_is_refused(monkeypatch) -> None:
    use_device(monkeypatch, (8, 6))
    model = tvm_ext.compile(mlp(4), target="nvidia-h200")
    with pytest.raises(
        TargetError, match=r"\(sm_90a\), and the GPU is Some GPU \(sm_86\); expected a"
    ):
        model.run({"x": rand(4, 6)})


def test_source_without_a_compiler_is_refused(monkeypatch) -> None:
    use_device(monkeypatch, (9, 0))
    monkeypatch.setenv("TVM_EXT_CUDA_COMPILER", "none")
    model = tvm_ext.compile(mlp(4), target="nvidia-h200")
    with pytest.raises(TargetError, match=r"holds CUDA source for nvidia-h200 .*leave it out"):
        model.run({"x": rand(4, 6)})


@pytest.mark.skipif(not driver_state().problem, reason="this machine has a GPU")
def test_without_a_gpu_a_model_says_why_and_can_be_looked_at(tmp_path) -> None:
    model = tvm_ext.compile(mlp(4), target="nvidia-h200")
    model.save(tmp_path / "m.tvmx")
    for one in (model, tvm_ext.load(tmp_path / "m.tvmx")):
        assert one.report.device.arch == "sm_90a"
        for run in (one.run, one.profile):
            with pytest.raises(TargetError, match=r"for nvidia-h200, and .*expected one"):
                run({"x": rand(4, 6)})


def test_an_old_driver_is_refused(monkeypatch) -> None:
    state = DriverState("", (12, 4), (CudaDevice("Some GPU", (9, 0), 1 << 30),))
    monkeypatch.setattr(runtime_library, "driver_state", lambda: state)
    if runtime_library.needed_cuda() is None:
        pytest.skip("this TVM has no CUDA runtime")
    assert "runs CUDA up to 12.4" in runtime_library.runtime_problem()


def test_the_runtime_of_packages_is_found(monkeypatch, tmp_path) -> None:
    library = tmp_path / "nvidia" / "cu13" / "lib" / "libcudart.so.13"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert library in list(runtime_library.cuda_runtimes(13))


def test_models_for_a_cpu_keep_nothing_on_a_device() -> None:
    with pytest.raises(InputError, match="on_device is set and the model was compiled for a CPU"):
        tvm_ext.compile(mlp(4)).run({"x": rand(4, 6)}, on_device=True)


def test_the_limit_of_a_cpu_leaves_the_driver_alone(monkeypatch) -> None:
    """A process whose driver is initialised cannot fork and go on."""
    asked = []

    def state() -> DriverState:
        asked.append(True)
        return DriverState("", (13, 0), (CudaDevice("Some GPU", (9, 0), 80 << 30),))

    monkeypatch.setattr("tvm_ext.hardware.cuda.host.driver_state", state)
    assert backend.default_limit(resolve_target("cpu")) == backend.DEFAULT_GIBIBYTES
    assert not asked
    assert backend.default_limit(resolve_target("nvidia-h200")) == 80


def test_the_newest_toolkit_is_the_first(monkeypatch) -> None:
    found = ["/usr/local/cuda-12.9", "/usr/local/cuda-13.0", "/usr/local/cuda-9.2"]
    monkeypatch.setattr(runtime_library.glob, "glob", lambda pattern: found)
    monkeypatch.setattr(runtime_library.os.path, "isdir", lambda path: path in found)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert runtime_library.cuda_roots() == [found[1], found[0], found[2]]
