"""Runs scripts with the fake CUDA of ``fake_cuda``: TVM's own CUDA runtime, on the host's memory.

The libraries are found before the real ones, for a process and its children, so that each script
runs in a process of its own. What is shown so: which arrays are copied when, what is queued,
graphs, and what errors of the device become. What is not: anything that takes more than one thread.
"""

import ctypes
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "fake_cuda"
SHARED = Path(__file__).parents[2] / "shared"
LIBRARIES = "FAKE_CUDA_LIBRARIES"

needs_gcc = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None or shutil.which("g++") is None,
    reason="the fake CUDA is built with gcc on Linux",
)


class State(ctypes.Structure):
    """``fake_state`` of fake_cuda/state.h."""

    _fields_ = [
        ("sticky", ctypes.c_int),
        ("fail_next", ctypes.c_int),
        ("used", ctypes.c_size_t),
        ("limit", ctypes.c_size_t),
        ("capturing", ctypes.c_void_p),
        ("head", ctypes.c_void_p),
        ("tail", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("last", "no_pinned", "current")),
        *((name, ctypes.c_int) for name in ("launches", "graph_launches", "waits", "syncs")),
        *((name, ctypes.c_int) for name in ("host_copies", "allocations")),
    ]


def state() -> State:
    """The fake device of this process."""
    library = ctypes.CDLL("libcudart.so.13")
    library.fake_cuda.restype = ctypes.POINTER(State)
    return library.fake_cuda().contents


@functools.cache
def libraries() -> str:
    """The folder with the two libraries."""
    folder = tempfile.mkdtemp(prefix="fake-cuda-")
    driver, runtime = f"{folder}/libcuda.so.1", f"{folder}/libcudart.so.13"
    common = ["gcc", "-shared", "-fPIC", "-O1", "-w"]
    first = ["-Wl,-soname,libcuda.so.1", "-o", driver, str(FOLDER / "driver.c"), "-ldl"]
    names = [f"-Wl,--version-script={FOLDER / 'runtime.map'}", "-Wl,-soname,libcudart.so.13"]
    second = [*names, "-o", runtime, str(FOLDER / "runtime.c"), driver]
    for arguments in (first, second):
        subprocess.run([*common, *arguments], check=True)
    return folder


def run_script(name: str, *arguments: str, **environment: str) -> str:
    """What a script of this folder prints; fails with its errors when it does not end with 0."""
    own = {
        **os.environ,
        "LD_LIBRARY_PATH": libraries(),
        "PYTHONPATH": os.pathsep.join(map(str, (FOLDER, FOLDER.parent, SHARED))),
        "OMP_NUM_THREADS": "1",
        "TVM_EXT_CUDA_COMPILER": "",
        **environment,
    }
    command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=own, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout
