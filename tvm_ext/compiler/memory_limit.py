"""Refuses programs that would take more memory than is meant for one.

A few integers of a damaged model can ask for any amount: systems that promise more memory than they
have end the process then, and not the model.
"""

import os
from collections.abc import Callable

from tvm_ext.compiler.backend import programs_of
from tvm_ext.errors import BuildError
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.report.records import MemoryRecord

VARIABLE = "TVM_EXT_MEMORY_LIMIT"
DEFAULT_GIBIBYTES = 3.0


def default_limit(machine: MachineDescription) -> float:
    """GiB for a program's buffers: what the machine's backend says, or ``DEFAULT_GIBIBYTES``."""
    return programs_of(machine).memory_limit() or DEFAULT_GIBIBYTES


def require_memory(
    record: MemoryRecord,
    label: str,
    limit_gibibytes: float = DEFAULT_GIBIBYTES,
    largest: Callable[[], str] = str,
) -> None:
    """Checks the planned peak of a program's buffers, weights not counted.

    ``largest`` says of what the largest of them is.

    Raises
    ------
    BuildError
        It is above ``VARIABLE`` GiB, or ``limit_gibibytes`` where that is not set; or the variable
        holds no number.
    """
    limit = _limit(limit_gibibytes)
    needed = (record.planned_peak_bytes or 0) / 2**30
    if needed > limit:
        where = largest()
        raise BuildError(
            f"{label} needs {needed:.1f} GiB for the values that it computes"
            f"{f', the largest of them that of {where}' if where else ''}; expected at most "
            f"{limit:g} GiB: give smaller input shapes, or set {VARIABLE} to the GiB it may use"
        )


def _limit(default: float) -> float:
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return default
    try:
        return float(text)
    except ValueError as error:
        raise BuildError(
            f"{VARIABLE} is '{text}'; expected a number of GiB: set it to one, or leave it out"
        ) from error
