"""Says of a run that failed at which of the model's nodes it did, and what can be done."""

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import tvm_ffi

from tvm_ext.configs.errors import CONTRADICTING_SIZES
from tvm_ext.errors import REPORT_IT, RunError
from tvm_ext.model_inputs import describe
from tvm_ext.report.records import KernelCall
from tvm_ext.tensor_spec import TensorSpec, listed, shapes_of, symbolic_names

# What TVM raises in a run; its InternalError is a RuntimeError.
TVM_ERRORS = (RuntimeError, ValueError, TypeError, MemoryError)

# What the hook of a virtual machine returns for it to go on.
GO_ON = 0

# How the virtual machine, TVM's allocators and NumPy begin what they say.
_SIZES = (
    "negative dimensions",
    *("ErrorContext(", "Check failed: input_shape", "Check failed: (input_shape"),
    CONTRADICTING_SIZES,
)
_MEMORY = ("bad_alloc", "cannot allocate", "out of memory", "failed to allocate")


def run_error(
    error: BaseException, specs: Sequence[TensorSpec], arrays: Sequence[np.ndarray], node: str
) -> RunError:
    """TVM's error in a run as one of ours.

    Parameters
    ----------
    error : BaseException
        What TVM raised.
    specs, arrays
        The model's inputs, and what was given for them.
    node : str
        The last node that was computed; empty where none is known.
    """
    given = listed([f"{s.name} {describe(a)}" for s, a in zip(specs, arrays, strict=True)])
    where = f" at or right after '{node}'" if node else ""
    text = str(error)
    if isinstance(error, MemoryError) or any(word in text.lower() for word in _MEMORY):
        return RunError(
            f"there is no memory left{where} for the inputs {given}; expected room for all values "
            "of the run: give smaller inputs (larger ones if a window does not fit into these), or "
            "end other programs"
        )
    if any(word in text for word in _SIZES):
        names = symbolic_names(shapes_of(specs))
        symbolic_sizes = f" (the model leaves {listed(names)} dynamic)" if names else ""
        return RunError(
            f"sizes do not fit together{where} for the inputs {given}{symbolic_sizes}; expected "
            "inputs whose sizes the model's operators can combine: give others, and check with "
            "ONNX Runtime which it accepts (tvm-ext check)"
        )
    return RunError(
        f"the run failed{where} for the inputs {given}; expected sizes and values that the model's "
        f"operators allow: check with ONNX Runtime which it accepts (tvm-ext check), or {REPORT_IT}"
    )


def failing_node(
    machine: tvm_ffi.Module, function: str, tensors: Sequence[Any], calls: Sequence[KernelCall]
) -> str:
    """The nodes of the last kernel that a run calls before it fails; empty for none.

    Parameters
    ----------
    machine : tvm_ffi.Module
        A virtual machine for this run alone: a hook cannot be taken out again.
    function : str
        Which of its functions runs.
    tensors : sequence
        Its inputs.
    calls : sequence of KernelCall
        The kernels of the program, with their nodes.
    """
    origins: dict[str, list[str]] = {}
    for call in calls:
        origins.setdefault(call.kernel, []).append(call.where)
    last, counts = "", dict.fromkeys(origins, 0)

    def note(func: Any, name: str, before: bool, result: Any, *args: Any) -> int:
        nonlocal last
        if before and name in origins:
            last = str(name)
            counts[last] += 1
        return GO_ON

    machine["set_instrument"](note)
    try:
        machine[function](*tensors)
    except Exception:  # noqa: BLE001
        # It fails again, and where was noted.
        if last:
            # The kernel of a loop's body is called more often than it stands in the program.
            return origins[last][(counts[last] - 1) % len(origins[last])]
    return ""


# What a compiled model runs in place of a branch that cannot be run: an error with the reason.


# Saved models call it by this name.
FAILED_BRANCH = "tvm_ext.failed_branch"


def register_failed_branch() -> None:
    """Makes the function known to virtual machines under ``FAILED_BRANCH``."""
    # So that the error comes back from TVM as what it is.
    tvm_ffi.register_error("RunError", RunError)
    tvm_ffi.register_global_func(FAILED_BRANCH, _fail, override=True)


def _fail(reason: str) -> NoReturn:
    raise RunError(reason)
