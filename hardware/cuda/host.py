"""The GPUs of this machine: what the NVIDIA driver says of them, and the target "cuda".

The driver is asked without TVM, which only knows that a device "does not exist"; the driver says
why. CUDA Driver API, "Device Management". And the GPU that a TVM target of kind cuda stands for.
"""

import ctypes
import functools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm

from tvm_ext.configs.loader import check_config
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.targets import plain_attributes, plain_value, presets_of

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"

# CUdevice_attribute.
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
_MULTIPROCESSORS, _L2_BYTES, _SHARED_BYTES = 16, 38, 97
_NO_DEVICE = 100
_NAME_BYTES = 256


@dataclass(frozen=True)
class CudaDevice:
    """One GPU.

    Attributes
    ----------
    name : str
        As the driver calls it: "NVIDIA H200".
    capability : tuple[int, int]
        Compute capability: (9, 0).
    memory_bytes, l2_bytes : int
        Device memory, and the cache before it.
    multiprocessors : int
        Number of them.
    shared_bytes : int
        The most shared memory that a block can ask for.
    """

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    l2_bytes: int = 0
    multiprocessors: int = 0
    shared_bytes: int = 0

    @property
    def arch(self) -> str:
        """As nvcc names it: "sm_90"."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


@dataclass(frozen=True)
class DriverState:
    """The driver of this machine.

    Attributes
    ----------
    problem : str
        What is wrong and what to do about it, in one line; empty where a device can be used.
    version : tuple[int, int]
        The newest CUDA that the driver runs: (13, 0); (0, 0) without a driver.
    devices : tuple[CudaDevice, ...]
        In the driver's order.
    """

    problem: str = ""
    version: tuple[int, int] = (0, 0)
    devices: tuple[CudaDevice, ...] = ()


@functools.cache
def driver_state() -> DriverState:
    """The driver of this machine, asked once: a process keeps the devices it began with."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        return DriverState(
            f"no NVIDIA driver was found ({error}); expected one: install it, or start the "
            "container with access to the GPU (docker run --gpus all)"
        )
    return read_state(library)


def read_state(library: Any) -> DriverState:
    """The state that an opened driver library reports; see ``driver_state``."""
    version = _version(library)
    code = library.cuInit(0)
    if code == _NO_DEVICE:
        return DriverState(_no_device(), version)
    if code != 0:
        return DriverState(
            f"the NVIDIA driver cannot be initialised ({_error_name(library, code)}); expected a "
            "driver whose kernel module and library are of one version: see what nvidia-smi says",
            version,
        )
    count = ctypes.c_int(0)
    if library.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return DriverState(_no_device(), version)
    return DriverState("", version, tuple(_device(library, i) for i in range(count.value)))


def _no_device() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = f" (CUDA_VISIBLE_DEVICES is '{visible}')" if visible is not None else ""
    return (
        f"the NVIDIA driver finds no CUDA device{seen}; expected one: see what nvidia-smi lists, "
        "and whether CUDA_VISIBLE_DEVICES hides it"
    )


def _version(library: Any) -> tuple[int, int]:
    number = ctypes.c_int(0)
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return (0, 0)
    # 1000 times the major plus 10 times the minor version.
    return (number.value // 1000, number.value % 1000 // 10)


def _error_name(library: Any, code: int) -> str:
    text = ctypes.c_char_p()
    if library.cuGetErrorName(code, ctypes.byref(text)) != 0 or not text.value:
        return f"error {code}"
    return text.value.decode()


def _device(library: Any, index: int) -> CudaDevice:
    handle = ctypes.c_int(0)
    library.cuDeviceGet(ctypes.byref(handle), index)
    name = ctypes.create_string_buffer(_NAME_BYTES)
    library.cuDeviceGetName(name, _NAME_BYTES, handle)

    def attribute(number: int) -> int:
        value = ctypes.c_int(0)
        library.cuDeviceGetAttribute(ctypes.byref(value), number, handle)
        return value.value

    total = ctypes.c_size_t(0)
    library.cuDeviceTotalMem_v2(ctypes.byref(total), handle)
    return CudaDevice(
        name.value.decode(),
        (attribute(_CAPABILITY_MAJOR), attribute(_CAPABILITY_MINOR)),
        total.value,
        attribute(_L2_BYTES),
        attribute(_MULTIPROCESSORS),
        attribute(_SHARED_BYTES),
    )


def gpu_memory() -> float | None:
    """GiB of this machine's GPU, if it has one.

    For programs for GPUs only: the driver takes time to start, and a process cannot fork after it.
    """
    devices = driver_state().devices
    return devices[0].memory_bytes / 2**30 if devices else None


# This machine's GPU as the target "cuda": a preset where there is one of it, else the nearest.


# What "cuda" means on a machine without a GPU: every later one has the instructions of this one.
DEFAULT_CUDA = "nvidia-a100"


def default_gpu() -> CudaDescription:
    """This machine's GPU, or that preset."""
    presets = presets_of(CudaDescription)
    default = next(item for item in presets if item.name == DEFAULT_CUDA)
    return host_gpu(presets) or default


def host_gpu(presets: Sequence[CudaDescription]) -> CudaDescription | None:
    """The first GPU that CUDA shows, None without one.

    ``presets`` give the numbers that the driver does not tell.
    """
    devices = driver_state().devices
    return described(devices[0], presets) if devices and presets else None


def described(device: CudaDevice, presets: Sequence[CudaDescription]) -> CudaDescription:
    """The preset of this very device, else the nearest one with what the driver says of it.

    A part of a device (MIG) has the device's name and fewer multiprocessors.
    """
    name = device.name.lower().replace(" ", "")
    same = [item for item in presets if capability_of(item.arch) == device.capability]
    for preset in same:
        whole = device.multiprocessors in (0, preset.sms)
        if whole and preset.name.removeprefix("nvidia-").replace("-", "") in name:
            return preset
    base = nearest(presets, device.capability)
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
    return CudaDescription.model_validate(base.model_dump() | changed)


def nearest(presets: Sequence[CudaDescription], capability: tuple[int, int]) -> CudaDescription:
    """The first preset with the highest compute capability up to this one, else with the lowest."""
    older = [item for item in presets if capability_of(item.arch) <= capability]
    chosen, pool = (max, older) if older else (min, presets)
    return chosen(pool, key=lambda item: capability_of(item.arch))


def capability_of(arch: str) -> tuple[int, int]:
    """The compute capability of an architecture: (9, 0) of "sm_90a"; (0, 0) of what is none."""
    digits = "".join(sign for sign in arch if sign.isdigit()).zfill(2)
    return (int(digits[:-1]), int(digits[-1]))


def gpu_of_tvm_target(target: tvm.target.Target) -> CudaDescription:
    """Its own numbers, others of the preset that is nearest by compute capability."""
    options = plain_attributes(target)
    arch = options.pop("arch")
    base = nearest(presets_of(CudaDescription), capability_of(arch))
    options.pop("max_num_threads", None)
    fields = {
        "max_threads_per_block": "max_threads_per_block",
        "max_shared_memory_per_block": "shared_memory_bytes",
        "registers_per_block": "registers_per_block",
        "l2_cache_size_bytes": "l2_bytes",
        "thread_warp_size": "warp_size",
    }
    given: dict[str, Any] = {
        field: options.pop(key) for key, field in fields.items() if key in options
    }
    if target.host is not None:
        options["host"] = plain_value(target.host.export())
    given |= {
        "name": arch,
        "summary": f"given as a TVM target; numbers of '{base.name}'",
        "arch": arch,
        "target_options": options,
    }
    return check_config(base.model_dump() | given, CudaDescription, "the TVM target")
