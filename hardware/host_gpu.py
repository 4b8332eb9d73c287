"""This machine's GPU as the target "cuda": a preset where there is one of it, else the nearest."""

from collections.abc import Sequence

from tvm_ext.hardware.cuda.driver import CudaDevice, driver_state
from tvm_ext.hardware.description import GpuDescription


def host_gpu(presets: Sequence[GpuDescription]) -> GpuDescription | None:
    """The first GPU that CUDA shows, None without one.

    ``presets`` give the numbers that the driver does not tell.
    """
    devices = driver_state().devices
    return described(devices[0], presets) if devices and presets else None


def described(device: CudaDevice, presets: Sequence[GpuDescription]) -> GpuDescription:
    """The preset of this very device, else the nearest one with what the driver says of it.

    A part of a device (MIG) has the device's name and fewer multiprocessors.
    """
    name = device.name.lower().replace(" ", "")
    same = [item for item in presets if capability_of(item.arch) == device.capability]
    for preset in same:
        whole = device.multiprocessors in (0, preset.sms)
        if whole and preset.name.removeprefix("nvidia-").replace("-", "") in name:
            return preset
    older = [item for item in presets if capability_of(item.arch) <= device.capability]
    chosen, pool = (max, older) if older else (min, presets)
    base = chosen(pool, key=lambda item: capability_of(item.arch))
    known = {
        "sms": device.multiprocessors,
        "l2_bytes": device.l2_bytes,
        "dynamic_shared_memory_bytes": device.shared_bytes,
    }
    changed = {
        "name": "cuda",
        "summary": f"this machine: {device.name}; other numbers of '{base.name}'",
        # The letter adds instructions that only this very capability has.
        "arch": base.arch if same else device.arch,
        **{field: value for field, value in known.items() if value > 0},
    }
    return GpuDescription.model_validate(base.model_dump() | changed)


def capability_of(arch: str) -> tuple[int, int]:
    """The compute capability of an architecture: (9, 0) of "sm_90a"."""
    digits = "".join(sign for sign in arch if sign.isdigit())
    return (int(digits[:-1]), int(digits[-1]))
