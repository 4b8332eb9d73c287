"""Errors of the device as one line each, and what is left of the process after them.

CUDA Runtime API, "Error handling": most errors leave the device as it was. After an error inside of
a kernel (an address that is not mapped, a trap) every later call of the process fails with it; then
only the CPU can be used.
"""

import re
from collections.abc import Callable

import tvm

from tvm_ext.errors import REPORT_IT, RunError, TargetError, TvmExtError, own_words
from tvm_ext.hardware.cuda.compilers import expected_device, missing_compilers, runs_on
from tvm_ext.hardware.cuda.host import driver_state
from tvm_ext.hardware.cuda.runtime_library import runtime_problem

_NAME = re.compile(r"\b(cudaError[A-Za-z]+|CUDA_ERROR_[A-Z_0-9]+)\b")
_LAUNCH = re.compile(r"grid=\(([\d,]+)\).*?block=\(([\d,]+)\)", re.DOTALL)

_SHARED = re.compile(r"dynamic shared memory size to (\d+)")

_NO_MEMORY = {"cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY"}
_WRONG_CODE = {
    "cudaErrorNoKernelImageForDevice",
    "cudaErrorInvalidDeviceFunction",
    "cudaErrorInvalidKernelImage",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_INVALID_PTX",
}
_OLD_DRIVER = {
    "cudaErrorInsufficientDriver",
    "cudaErrorUnsupportedPtxVersion",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
}

_lost: list[str] = []


def require_context() -> None:
    """Raises RunError when an earlier error of the device took this process's CUDA context."""
    if _lost:
        raise RunError(
            f"the GPU cannot be used any more in this process ({_lost[0]} in an earlier run took "
            "its CUDA context); expected a working context: restart the process (models compiled "
            "for the CPU still run)"
        )


def device_error(
    error: BaseException, name: str, still_works: Callable[[], bool], memory: str = ""
) -> TvmExtError:
    """TVM's error as one of ours.

    Parameters
    ----------
    error : BaseException
        What TVM raised in a run.
    name : str
        The model.
    still_works : callable
        Asks the device whether it can still be used.
    memory : str
        What the model takes, in words, for an error that says that there is no room.
    """
    found = _NAME.search(str(error))
    shared = _SHARED.search(str(error))
    if found is None and shared is not None:
        return RunError(
            f"the GPU refused the run of {name} (a block of threads asks for {shared.group(1)} "
            "bytes of shared memory); expected a kernel within the device's limits: compile for "
            "this machine's GPU (--target cuda)"
        )
    if found is None:
        return RunError(
            f"the run of {name} failed{f' ({own_words(error)})' if own_words(error) else ''}; "
            "expected sizes and values that the model's operators allow: check them with ONNX "
            f"Runtime (tvm-ext check), or {REPORT_IT}"
        )
    code = found.group(1)
    if code in _NO_MEMORY:
        return RunError(
            f"the GPU has no memory left for {name} ({code}); expected room for {memory or 'it'} "
            "and its inputs: give smaller inputs, or end other programs that use the GPU "
            "(nvidia-smi lists them)"
        )
    if code in _WRONG_CODE:
        return TargetError(
            f"the GPU cannot run the code of {name} ({code}); expected code for this GPU: "
            "compile the model again here"
        )
    if code in _OLD_DRIVER:
        return TargetError(
            f"the NVIDIA driver is too old for the code of {name} ({code}); expected a driver for "
            "the CUDA that compiled it: update the driver, or compile the model again here"
        )
    if not still_works():
        _lost.append(code)
        return RunError(
            f"a kernel of {name} failed on the GPU ({code}), and the process has lost its CUDA "
            "context; expected kernels that stay inside their arrays: restart the process (models "
            "compiled for the CPU still run) and find the kernel with tvm-ext check --bisect"
        )
    return RunError(
        f"the GPU refused the run of {name} ({code}{_launch(error)}); expected a kernel within "
        "the device's limits: try --opt-level 0, and report the model"
    )


def context_is_lost() -> bool:
    """Whether an error of the device has taken this process's context."""
    return bool(_lost)


def _launch(error: BaseException) -> str:
    found = _LAUNCH.search(str(error))
    return f", grid ({found.group(1)}), block ({found.group(2)})" if found else ""


# Checks before the first run on a GPU, so that what is missing is said in one line.


# The GPU that models run on: the first that CUDA_VISIBLE_DEVICES shows.
DEVICE_INDEX = 0


def gpu() -> tvm.runtime.Device:
    """The device that models run on."""
    return tvm.cuda(DEVICE_INDEX)


def gpu_architecture() -> str:
    """Its architecture: "sm_90"."""
    return driver_state().devices[DEVICE_INDEX].arch


def require_gpu(name: str) -> None:
    """Checks that a model for target ``name`` can use a GPU here at all.

    Raises
    ------
    TargetError
        There is no driver, none that is new enough, no CUDA device, or no CUDA runtime.
    RunError
        An earlier error of the device took this process's context.
    """
    problem = runtime_problem()
    if problem:
        raise TargetError(f"the model was compiled for {name}, and {problem}")
    require_context()


def require_architecture(name: str, arch: str, form: str) -> None:
    """Checks that this machine's GPU runs code for ``arch`` in this form.

    Parameters
    ----------
    name : str
        The target's name.
    arch : str
        What the code was made for: "sm_90a".
    form : str
        See ``architecture.CodeForm``; source also needs a compiler.

    Raises
    ------
    TargetError
        The device is another one, or there is only source and nothing to compile it with.
    """
    device = driver_state().devices[DEVICE_INDEX]
    if not runs_on(arch, form, device.capability):
        raise TargetError(
            f"the model was compiled for {name} ({arch}), and the GPU is {device.name} "
            f"({device.arch}); expected {expected_device(arch, form)}: compile it for this GPU"
        )
    if form == "source" and missing_compilers():
        raise TargetError(
            f"the model holds CUDA source for {name} ({arch}), and {missing_compilers()}"
        )
