"""The device that CUDA's calls of a thread are for, in a machine with several."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from tvm_ext.hardware.cuda.driver import LIBRARY, driver_state


@contextmanager
def current_device_kept() -> Iterator[None]:
    """The thread's current device is after the block what it was before.

    TVM makes its device current and leaves it so. PyTorch and others allocate on the current one.
    """
    if len(driver_state().devices) < 2:
        yield
        return
    # CUDA Driver API, "Context Management": the current device of CUDA's runtime is that of the
    # thread's context.
    driver = ctypes.CDLL(LIBRARY)
    before = ctypes.c_void_p()
    driver.cuCtxGetCurrent(ctypes.byref(before))
    try:
        yield
    finally:
        if before.value:
            driver.cuCtxSetCurrent(before)
