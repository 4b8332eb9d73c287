"""Loads TVM's CUDA runtime, also where CUDA itself came as a Python package.

TVM tries to load ``libtvm_runtime_cuda`` while it is imported and says nothing when that fails. It
fails where the loader finds no ``libcudart.so.13``, though PyTorch and NVIDIA's packages bring one
in a folder of their own. A library that is loaded already is found by its name: so that one is
loaded first, and TVM's then.
"""

import ctypes
import functools
import glob
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import tvm
from tvm_ffi.libinfo import load_lib_ctypes

from tvm_ext.hardware.cuda.host import driver_state
from tvm_ext.hardware.tvm_compat import loaded_libraries

_NEEDED = re.compile(rb"libcudart\.so\.(\d+)")


def runtime_problem() -> str:
    """Why TVM cannot use a GPU here and what to do about it, in one line; empty where it can.

    Loads TVM's CUDA runtime where that has not happened yet.
    """
    state = driver_state()
    if state.problem:
        return state.problem
    needed = needed_cuda()
    if needed is not None and state.version < (needed, 0):
        found = ".".join(map(str, state.version))
        return (
            f"the NVIDIA driver runs CUDA up to {found}, TVM's runtime is of CUDA {needed}; "
            f"expected a driver for CUDA {needed}.0 or newer: update the driver"
        )
    if cuda_runtime_present():
        return ""
    return _loaded(needed)


@functools.cache
def needed_cuda() -> int | None:
    """The major version of CUDA that TVM's runtime is linked with; None where TVM has none."""
    path = cuda_library_path()
    if path is None:
        return None
    found = _NEEDED.search(path.read_bytes())
    return int(found.group(1)) if found else None


def _loaded(needed: int | None) -> str:
    if needed is None:
        return (
            "this TVM has no CUDA runtime; expected the wheel of apache-tvm for Linux: "
            "pip install --force-reinstall apache-tvm"
        )
    for path in cuda_runtimes(needed):
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        break
    try:
        load_cuda_runtime()
    except (OSError, RuntimeError) as error:
        return (
            f"TVM's CUDA runtime cannot be loaded ({error}); expected libcudart.so.{needed}: "
            f"install CUDA {needed}, or pip install 'nvidia-cuda-runtime=={needed}.*'"
        )
    return ""


def cuda_runtimes(major: int) -> Iterator[Path]:
    """Files of CUDA's runtime library of this version, in the order in which they are tried."""
    name = f"libcudart.so.{major}"
    folders = [os.path.join(root, "lib64") for root in cuda_roots()]
    for folder in [*package_folders("lib"), *folders]:
        path = Path(folder, name)
        if path.is_file():
            yield path


def cuda_roots() -> list[str]:
    """Folders of installed CUDA toolkits: those of ``$CUDA_PATH`` and the like, then usual ones."""
    named = [os.environ.get(variable, "") for variable in ("CUDA_PATH", "CUDA_HOME")]
    releases = sorted(glob.glob("/usr/local/cuda-*"), key=_release, reverse=True)
    usual = ["/usr/local/cuda", *releases]
    return [root for root in (*named, *usual) if root and os.path.isdir(root)]


def _release(root: str) -> list[int]:
    """The numbers in a folder's name, since "cuda-9.2" comes after "cuda-13.0" as text."""
    return [int(number) for number in re.findall(r"\d+", os.path.basename(root))]


def package_folders(kind: str) -> list[str]:
    """Folders ``kind`` ("lib", "include") of NVIDIA's Python packages, which PyTorch installs."""
    spec = importlib.util.find_spec("nvidia")
    if spec is None or spec.submodule_search_locations is None:
        return []
    roots = list(spec.submodule_search_locations)
    return [path for root in roots for path in sorted(glob.glob(os.path.join(root, "*", kind)))]


def cuda_runtime_present() -> bool:
    """Whether TVM has loaded its CUDA runtime, with which it runs programs on a GPU."""
    return tvm.get_global_func("device_api.cuda", allow_missing=True) is not None


def cuda_library_path() -> Path | None:
    """The file of TVM's CUDA runtime, beside that of its own; None where this TVM has none."""
    folder = Path(loaded_libraries["tvm_runtime"]._name).resolve().parent
    return next(iter(sorted(folder.glob("*tvm_runtime_cuda.*"))), None)


def load_cuda_runtime() -> None:
    """Loads it now, as TVM itself tries to do at import. Raises OSError or RuntimeError."""
    folder = Path(loaded_libraries["tvm_runtime"]._name).resolve().parent
    loaded_libraries["tvm_runtime_cuda"] = load_lib_ctypes(
        "tvm", "tvm_runtime_cuda", "RTLD_LOCAL", extra_lib_paths=[folder]
    )


def keep_for_ever(*objects: object) -> None:
    """Takes references that are never given back.

    Without a context freeing device memory fails, in a destructor, which would end the process.
    """
    for one in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


# NVIDIA's libraries of kernels, as far as TVM was built with them.
#
# TVM hands parts of a graph to a library through a code generator that is compiled into TVM
# itself (``relax.ext.cublas``), so that a library which is only installed beside it is of no use.


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
