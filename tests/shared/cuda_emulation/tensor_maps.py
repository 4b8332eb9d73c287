"""Tensor maps of TMA copies, as the host makes them: checks of ``cuTensorMapEncodeTiled``."""

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi

from cuda_emulation.errors import CudaEmulationError

_MAGIC = 0x70616D726F736E74
_TFLOAT32 = 11
_SWIZZLED_BYTES = {0: 0, 1: 32, 2: 64, 3: 128}


@tvm_ffi.register_global_func("cuda_emulation.tensor_map", override=True)
def _encode(place: Any, dtype: Any, rank: int, base: Any, *rest: int) -> None:
    """Arguments as of TVM's ``runtime.cuTensorMapEncodeTiled``, written in the emulator's way."""
    extents, rest = rest[:rank], rest[rank:]
    strides, rest = rest[: rank - 1], rest[rank - 1 :]
    box, rest = rest[:rank], rest[rank:]
    steps, rest = rest[:rank], rest[rank:]
    interleave, swizzle, forced = rest[0], rest[1], rest[4]
    width = tvm.DataType(str(dtype)).bits // 8
    address = int(getattr(base, "value", base) or 0)
    _check(address, width, extents, strides, box, swizzle)
    if steps[0] != 1 or any(not 1 <= step <= 8 for step in steps):
        raise CudaEmulationError("cuTensorMapEncodeTiled: an element stride is not in 1 to 8")
    if interleave or (forced != -1 and (forced != _TFLOAT32 or width != 4)):
        raise CudaEmulationError("the emulator knows no interleaved tensor maps, or of such a type")
    packed = struct.pack(
        "<QQIIII5Q4Q5H5B",
        *(_MAGIC, address, rank, width, swizzle, int(forced == _TFLOAT32)),
        *_padded(extents, 5),
        *_padded(strides, 4),
        *_padded(box, 5),
        *_padded(steps, 5),
    )
    ctypes.memmove(int(getattr(place, "value", place)), packed, len(packed))


def _padded(values: Sequence[int], count: int) -> list[int]:
    return [*map(int, values), *[0] * (count - len(values))]


def _check(
    address: int,
    width: int,
    extents: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    swizzle: int,
) -> None:
    """What the CUDA driver API asks for."""
    inner = box[0] * width
    faults = {
        "the tensor is not at a multiple of 16 bytes": address % 16,
        "a stride is not a multiple of 16 bytes": any(s % 16 or s >= 1 << 40 for s in strides),
        "a box has more than 256 elements along a dimension": any(not 1 <= n <= 256 for n in box),
        "a row of the box is not a multiple of 16 bytes": inner % 16,
        "an extent is not in 1 to 2^32": any(not 1 <= n <= 1 << 32 for n in extents),
        "a row of the box is longer than the swizzle": (
            swizzle and inner > _SWIZZLED_BYTES[swizzle]
        ),
    }
    for fault, found in faults.items():
        if found:
            raise CudaEmulationError(f"cuTensorMapEncodeTiled: {fault}")
