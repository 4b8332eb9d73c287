"""Whether there is a GPU to measure on, here or on a server, that runs a target's code."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm_ext.configs.errors import TuningError, last_line
from tvm_ext.hardware.cuda.compilers import expected_device, runs_on
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.cuda.host import LIBRARY, driver_state
from tvm_ext.tuning.cuda.build import CudaUnavailable
from tvm_ext.tuning.runner import QUEUE_SECONDS, RunDeviceAddress, open_device
from tvm_ext.tuning.worker import Worker, WorkerFailure

# How long a driver may take to answer.
_ANSWER_SECONDS = 60.0


@dataclass(frozen=True)
class CudaDeviceFacts:
    """What the driver says of a GPU.

    Attributes
    ----------
    exists : bool
        Whether there is one.
    name : str
        As its maker calls it.
    capability : tuple[int, int]
        Compute capability, such as (9, 0).
    problem : str
        Why there is none, if that is known.
    """

    exists: bool
    name: str = ""
    capability: tuple[int, int] = (0, 0)
    problem: str = ""

    def describe(self) -> str:
        """In a few words."""
        return f"{self.name}, compute capability {self.capability[0]}.{self.capability[1]}"


def cuda_device_facts(address: RunDeviceAddress) -> CudaDeviceFacts:
    """Asks the driver at an address; in a worker's process, which CUDA may take over."""
    try:
        with open_device(address) as opened:
            if not address.host:
                found = driver_state().devices[0]
                return CudaDeviceFacts(True, found.name, found.capability)
            # A server's driver is asked by way of TVM.
            device = opened.device
            if not device.exist:
                return CudaDeviceFacts(False)
            major, minor = str(device.compute_version).split(".")
            return CudaDeviceFacts(True, str(device.device_name), (int(major), int(minor)))
    except CudaUnavailable as error:
        return CudaDeviceFacts(False, problem=str(error))


def checked_gpu(machine: CudaDescription, servers: Sequence[RunDeviceAddress]) -> CudaDeviceFacts:
    """The GPU that candidates for ``machine`` will be timed on.

    Parameters
    ----------
    machine : CudaDescription
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
            f"the CUDA device {where} cannot be queried ({last_line(error)}); expected a device "
            "that works: check that nvidia-smi lists it"
        ) from error
    if not found.exists:
        raise TuningError(_no_device(machine, where, bool(servers), found.problem))
    # Without a letter the code goes along as PTX too.
    if not runs_on(machine.arch, "fatbin", found.capability):
        raise TuningError(
            f"the GPU {where} ({found.describe()}) does not run code for target '{machine.name}' "
            f"({machine.arch}); expected {expected_device(machine.arch, 'fatbin')}: choose another "
            "--target"
        )
    return found


def has_gpu() -> bool:
    """Whether this machine has a GPU that answers."""
    try:
        return _asked(RunDeviceAddress()).exists
    except WorkerFailure:
        return False


def _asked(address: RunDeviceAddress) -> CudaDeviceFacts:
    """What ``cuda_device_facts`` says, in its own process: one that has looked must not fork."""
    if not address.host and not _has_driver():
        return CudaDeviceFacts(False, problem="no NVIDIA driver was found")
    worker = Worker()
    try:
        timeout = _ANSWER_SECONDS + (QUEUE_SECONDS if address.host else 0.0)
        found: CudaDeviceFacts = worker.call(
            cuda_device_facts, replace(address, kind="cuda"), timeout=timeout
        )
        return found
    finally:
        worker.stop()


def _has_driver() -> bool:
    """Whether the driver's library is installed; does not initialise it."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def _no_device(machine: CudaDescription, where: str, is_remote: bool, problem: str) -> str:
    # What it says to do about it is not all that can be done.
    why = f" ({problem.split(';')[0]})" if problem else ""
    advice = (
        "register a server on a machine with one under this key"
        if is_remote
        else "run 'tvm-ext rpc-server' on a machine with one; tune with --rpc-tracker and --rpc-key"
    )
    return (
        f"there is no CUDA device {where} to measure candidates for target '{machine.name}' on"
        f"{why}; expected an NVIDIA GPU with its driver: {advice}"
    )


def gpu_facts(machine: CudaDescription, servers: Sequence[RunDeviceAddress]) -> dict[str, str]:
    """What the log says of the GPU; raises TuningError as ``checked_gpu`` does."""
    return {"gpu": checked_gpu(machine, servers).describe()}
