"""Whether there is a GPU to measure on, here or on a server, that runs a target's code."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tuning.errors import TuningError
from tvm_ext.tuning.lines import last_line
from tvm_ext.tuning.run_device import RunDeviceAddress, open_device
from tvm_ext.tuning.runner_pool import QUEUE_SECONDS
from tvm_ext.tuning.worker import Worker, WorkerFailure

# TVM registers it when it has loaded its CUDA runtime, which needs a driver.
_RUNTIME = "device_api.cuda"

# How long a driver may take to answer.
_ANSWER_SECONDS = 60.0


@dataclass(frozen=True)
class GpuFacts:
    """What the driver says of a GPU.

    Attributes
    ----------
    exists : bool
        Whether there is one.
    name : str
        As its maker calls it.
    capability : str
        Compute capability, such as "9.0".
    """

    exists: bool
    name: str = ""
    capability: str = ""


def gpu_facts(address: RunDeviceAddress) -> GpuFacts:
    """Asks the driver at an address; in a worker's process, which CUDA may take over."""
    with open_device(address) as opened:
        device = opened.device
        if not device.exist:
            return GpuFacts(False)
        return GpuFacts(True, str(device.device_name), str(device.compute_version))


def checked_gpu(machine: GpuDescription, servers: Sequence[RunDeviceAddress]) -> GpuFacts:
    """The GPU that candidates for ``machine`` will be timed on.

    Parameters
    ----------
    machine : GpuDescription
        What is tuned for.
    servers : Sequence[RunDeviceAddress]
        Where candidates run, the first of which is asked; empty for this machine.

    Raises
    ------
    TuningError
        There is none, or it does not run code for ``machine``.
    """
    address = servers[0] if servers else RunDeviceAddress()
    where = f"on the RPC server with key '{address.key}'" if servers else "here"
    try:
        found = _asked(address)
    except WorkerFailure as error:
        raise TuningError(
            f"the CUDA device {where} cannot be asked what it is ({last_line(error)}); expected "
            "one that works: see whether nvidia-smi shows it"
        ) from error
    if not found.exists:
        raise TuningError(_no_device(machine, where, bool(servers)))
    if not runs_code_for(found.capability, machine.arch):
        raise TuningError(
            f"the GPU {where} ({found.name}, compute capability {found.capability}) does not run "
            f"code for target '{machine.name}' ({machine.arch}); expected a target of its "
            "generation: choose another --target"
        )
    return found


def has_gpu() -> bool:
    """Whether this machine has a GPU that answers."""
    try:
        return _asked(RunDeviceAddress()).exists
    except WorkerFailure:
        return False


def _asked(address: RunDeviceAddress) -> GpuFacts:
    """What ``gpu_facts`` says, in a process of its own: where it has looked, no other may fork."""
    if not address.host and tvm.get_global_func(_RUNTIME, allow_missing=True) is None:
        return GpuFacts(False)
    worker = Worker()
    try:
        timeout = _ANSWER_SECONDS + (QUEUE_SECONDS if address.host else 0.0)
        found: GpuFacts = worker.call(gpu_facts, replace(address, kind="cuda"), timeout=timeout)
        return found
    finally:
        worker.stop()


def runs_code_for(capability: str, arch: str) -> bool:
    """Whether a GPU of compute capability ``capability`` ("9.0") runs code for ``arch`` ("sm_90a").

    Code of an architecture runs on later ones, but with the suffix "a" on this one only, and with
    "f" on those of the same major number. CUDA C++ Programming Guide, "Application Compatibility".
    """
    wanted = re.fullmatch(r"sm_(\d+)(\d)([af]?)", arch)
    have = re.fullmatch(r"(\d+)\.(\d+)", capability)
    if wanted is None or have is None:
        return True
    asked = (int(wanted[1]), int(wanted[2]))
    there = (int(have[1]), int(have[2]))
    if wanted[3] == "a":
        return there == asked
    return there >= asked and (wanted[3] != "f" or there[0] == asked[0])


def _no_device(machine: GpuDescription, where: str, is_remote: bool) -> str:
    advice = (
        "register a server on a machine with one under this key"
        if is_remote
        else "run 'tvm-ext worker' on a machine with one and tune with --rpc-tracker and --rpc-key"
    )
    return (
        f"there is no CUDA device {where} to measure candidates for target '{machine.name}' on; "
        f"expected an NVIDIA GPU with its driver: {advice}"
    )
