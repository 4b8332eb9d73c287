"""NVIDIA's libraries of kernels, as far as TVM was built with them.

TVM hands parts of a graph to a library through a code generator that is compiled into TVM itself
(``relax.ext.cublas``), so that a library which is only installed beside it is of no use.
"""

from collections.abc import Mapping

import tvm

CODE_GENERATORS: Mapping[str, str] = {
    "cuBLAS": "relax.ext.cublas",
    "cuDNN": "relax.ext.cudnn",
    "CUTLASS": "relax.ext.cutlass",
}
"""By library, the function that TVM registers when it was built with it."""

CANDIDATES = ("cuBLAS",)
"""Those that tuning sessions measure beside the templates."""


def vendor_libraries() -> tuple[str, ...]:
    """The libraries that this TVM can hand kernels to."""
    return tuple(
        name
        for name, function in CODE_GENERATORS.items()
        if tvm.get_global_func(function, allow_missing=True) is not None
    )


def vendor_library_note() -> str:
    """In one line, which libraries kernels may be left to."""
    found = vendor_libraries()
    if not found:
        return f"none: this TVM was built without {', '.join(CODE_GENERATORS)}"
    notes = {name: "a candidate of tuning" if name in CANDIDATES else "not used" for name in found}
    return ", ".join(f"{name} ({note})" for name, note in notes.items())
