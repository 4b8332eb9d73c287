"""What the target "cuda" is on a machine with a GPU."""

import pytest

from tvm_ext.hardware.cuda import host as host_gpu
from tvm_ext.hardware.cuda.host import CudaDevice, DriverState
from tvm_ext.hardware.targets import list_targets, resolve_target


def on_a_machine_with(monkeypatch, device: CudaDevice) -> None:
    state = DriverState("", (13, 0), (device,))
    monkeypatch.setattr(host_gpu, "driver_state", lambda: state)


@pytest.mark.parametrize(
    ("name", "capability", "preset"),
    [
        ("NVIDIA H200", (9, 0), "nvidia-h200"),
        ("NVIDIA H100 80GB HBM3", (9, 0), "nvidia-h100"),
        ("NVIDIA A100-SXM4-80GB", (8, 0), "nvidia-a100"),
        ("NVIDIA GeForce RTX 4090", (8, 9), "nvidia-rtx4090"),
    ],
)
def test_a_gpu_with_a_preset_is_that(monkeypatch, name, capability, preset) -> None:
    sms = resolve_target(preset).sms
    on_a_machine_with(monkeypatch, CudaDevice(name, capability, 80 << 30, 1 << 20, sms, 99_000))
    assert resolve_target("cuda") == resolve_target(preset)


@pytest.mark.parametrize(
    ("name", "capability", "arch", "base"),
    [
        ("NVIDIA RTX A1000", (8, 6), "sm_86", "nvidia-a100"),
        ("NVIDIA H20", (9, 0), "sm_90a", "nvidia-h"),
        ("NVIDIA H200 MIG 1g.18gb", (9, 0), "sm_90a", "nvidia-h"),
        ("NVIDIA B200", (10, 0), "sm_100", "nvidia-h"),
        ("Tesla V100", (7, 0), "sm_70", "nvidia-a100"),
    ],
)
def test_another_one_has_its_own_numbers(monkeypatch, name, capability, arch, base) -> None:
    on_a_machine_with(monkeypatch, CudaDevice(name, capability, 80 << 30, 6 << 20, 20, 99_000))
    found = resolve_target("cuda")
    assert (found.name, found.arch, found.sms, found.l2_bytes) == ("cuda", arch, 20, 6 << 20)
    assert found.dynamic_shared_memory_bytes == 99_000
    assert name in found.summary
    assert f"numbers of '{base}" in found.summary
    assert name in {one.name: one.summary for one in list_targets()}["cuda"]
