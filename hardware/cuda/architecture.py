"""Which GPU runs code that was made for which: CUDA C++ Programming Guide, "Compute Capabilities".

Machine code (cubin) of sm_XY runs on devices X.Z with Z of at least Y. PTX and source of sm_XY are
translated for any later device. What is made for an architecture with a letter (sm_90a) runs on
exactly that one.
"""

import re
from typing import Literal, get_args

CodeForm = Literal["source", "cubin", "fatbin"]
"""CUDA C++ text; machine code; machine code beside PTX for later GPUs."""

FORMS: tuple[str, ...] = get_args(CodeForm)

_ARCH = re.compile(r"sm_(\d+)(\d)([a-z]?)")


def runs_on(arch: str, form: str, capability: tuple[int, int]) -> bool:
    """Whether code of ``form`` for ``arch`` ("sm_90a") runs on a device of this capability."""
    found = _ARCH.fullmatch(arch)
    if found is None:
        return True
    made_for = (int(found.group(1)), int(found.group(2)))
    if found.group(3):
        return capability == made_for
    if form == "cubin":
        return capability[0] == made_for[0] and capability >= made_for
    return capability >= made_for


def expected_device(arch: str, form: str) -> str:
    """In words, the devices that run such code."""
    found = _ARCH.fullmatch(arch)
    if found is None:
        return f"a GPU of {arch}"
    major, minor = found.group(1), found.group(2)
    if found.group(3):
        return f"a GPU of compute capability {major}.{minor}"
    if form == "cubin":
        return f"a GPU of compute capability {major}.{minor} to {major}.9"
    return f"a GPU of compute capability {major}.{minor} or above"
