"""Order between a run and what other libraries have queued on the same device.

A run queues everything on CUDA's default stream: TVM's copies go there whatever stream is set, and
its pool hands memory from one run to the next, which only one stream keeps in order. PyTorch and
CuPy use the same stream unless told otherwise. Where one of them has another stream current, a run
waits for what is queued there, and that stream waits for the run; the host waits for neither. The
streams of other libraries are not known: the host waits for the run where it reads their tensors.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm

from tvm_ext.cuda.device_memory import (
    current_stream,
    make_current,
    make_stream_wait,
    with_stream,
)
from tvm_ext.errors import RunError

# cudaStreamLegacy, by which some libraries name the default stream.
_DEFAULT = (0, 1)

# Whose current streams a run is in order with, or that have none.
_KNOWN = ("torch", "cupy", "tvm", "tvm_ffi", "numpy", "builtins")


@contextmanager
def ordered_with_others(device: tvm.runtime.Device) -> Iterator[None]:
    """What is queued inside of this block is in order with the current streams of other libraries.

    After an error nobody waits: the device may be gone. Raises RunError while PyTorch records a
    CUDA graph, whose stream no other may wait for.
    """
    # A graph is launched on the current one.
    make_current(device)
    others = other_streams(device)
    for stream in others:
        make_stream_wait(device, stream, 0)
    with with_stream(device, 0):
        yield
    for stream in others:
        make_stream_wait(device, 0, stream)


def other_streams(device: tvm.runtime.Device) -> list[int]:
    """The current streams of TVM, PyTorch and CuPy but for the default one."""
    found = [current_stream(device), _torch_stream(device.index), _cupy_stream(device.index)]
    return sorted({stream for stream in found if stream not in _DEFAULT})


def has_unknown_stream(value: Any) -> bool:
    """Whether the library that a value is of may have work of its own on a stream of its own."""
    return type(value).__module__.partition(".")[0] not in _KNOWN


def _torch_stream(index: int) -> int:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    if torch.cuda.is_current_stream_capturing():
        raise RunError(
            "PyTorch records a CUDA graph, which a run cannot be a part of: it has storage and "
            "graphs of its own; expected a run before or after: call it outside of "
            "torch.cuda.graph"
        )
    return int(torch.cuda.current_stream(index).cuda_stream)


def _cupy_stream(index: int) -> int:
    cupy: Any = sys.modules.get("cupy")
    if cupy is None or not hasattr(cupy, "cuda"):
        return 0
    with cupy.cuda.Device(index):
        return int(cupy.cuda.get_current_stream().ptr)
