"""The error that ends a run."""

import tvm_ffi


class CudaEmulationError(AssertionError):
    """A kernel did what a GPU does not allow: kernel, block, thread and line are in the message."""


tvm_ffi.register_error("CudaEmulationError", CudaEmulationError)
