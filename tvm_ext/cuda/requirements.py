"""Checks before the first run on a GPU, so that what is missing is said in one line."""

import tvm

from tvm_ext.cuda.failures import require_context
from tvm_ext.hardware.cuda.architecture import expected_device, runs_on
from tvm_ext.hardware.cuda.compilers import missing_compilers
from tvm_ext.hardware.cuda.driver import driver_state
from tvm_ext.hardware.cuda.runtime_library import runtime_problem
from tvm_ext.hardware.errors import TargetError

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
