"""Models compiled for a GPU that run in the emulator of CUDA code, on any machine."""

from typing import Any
from unittest import mock

from cuda_emulation import emulated_builds

import tvm_ext

# The virtual machine's functions for graphs are a part of TVM's CUDA runtime.
_OPTIONS = {"disabled_passes": ("CudaGraphs",)}


def emulated_model(
    model: Any, target: str = "nvidia-h100", **options: Any
) -> tvm_ext.CompiledModel:
    """``tvm_ext.compile`` for a GPU; the model's ``run`` has its kernels emulated."""
    with emulated_builds():
        compiled = tvm_ext.compile(model, target, **{**_OPTIONS, **options})
    # Run as it is: a library file, which a program usually becomes first, cannot hold the emulator.
    module = compiled._program._program.mod
    mock.patch.object(compiled._program, "opened", return_value=module).start()
    mock.patch.object(compiled, "_gpu", None).start()
    mock.patch.object(compiled, "_require_this_machine").start()
    return compiled
