"""Kernels for AArch64, run on any machine that has QEMU's user mode and a cross compiler."""

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import tirx

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.lowering_pipeline import lowering_pipeline, pass_options

_COMPILER, _EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
_MISSING = [name for name in (_COMPILER, _EMULATOR) if shutil.which(name) is None]

_needs_emulator = pytest.mark.skipif(
    bool(_MISSING), reason=f"there is no {' and no '.join(_MISSING)} to run code for AArch64"
)


def emulated(test: Callable[..., None]) -> Callable[..., None]:
    """``test``, which runs code for AArch64, where that can be; by ``make test-emulated``."""
    return pytest.mark.emulated(_needs_emulator(test))


# DLPack's codes; NumPy's letter of bfloat16 is "V".
_KINDS = {"i": 0, "u": 1, "f": 2, "V": 4}


def arm(*features: str) -> CpuDescription:
    """A CPU of one core with NEON and ``features``, as LLVM names them."""
    changes = {"mattr": tuple(f"+{feature}" for feature in features), "cores": 1}
    return CpuDescription(**(resolve_target("aarch64-neon").model_dump() | changes))


def compiled(func: tirx.PrimFunc, machine: CpuDescription) -> tvm.runtime.Module:
    """A scheduled kernel as code for ``machine``, which cannot be called here."""
    target = machine.tvm_target()
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with tvm.transform.PassContext(opt_level=3, config=pass_options(target)):
        return tirx.build(module, target, lowering_pipeline(target))


def run_on_arm(code: tvm.runtime.Module, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """What the kernel writes to the last of ``arrays``, for one thread.

    All arrays lie at the end of what may be touched, and again at its start.
    """
    given = struct.pack("q", len(arrays)) + b"".join(map(_as_bytes, arrays))
    last = arrays[-1]
    with tempfile.TemporaryDirectory() as folder:
        kernel, program = Path(folder, "kernel.o"), Path(folder, "program")
        code.write_to_file(str(kernel), "o")
        source = Path(__file__).with_suffix(".c")
        command = [_COMPILER, "-static", "-O1", source, kernel, "-lm", "-o", program]
        subprocess.run(command, check=True)
        results = []
        for place in ("end", "start"):
            command = [_EMULATOR, "-cpu", "max", program, place]
            made = subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True)
            results.append(np.frombuffer(made.stdout, last.dtype).reshape(last.shape))
    np.testing.assert_array_equal(results[0], results[1])
    return results[0]


def _as_bytes(array: np.ndarray) -> bytes:
    bits = 8 * array.dtype.itemsize
    head = (_KINDS[array.dtype.kind], bits, array.ndim, *array.shape)
    return struct.pack(f"{len(head)}q", *head) + array.tobytes()
