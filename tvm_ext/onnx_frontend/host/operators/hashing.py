"""MurmurHash3 of com.microsoft, which skl2onnx writes for feature hashing."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_ext.onnx_frontend.host.operators.operator import Compute, HostOperator

_MASK = 0xFFFFFFFF


def murmur_hash(attributes: dict[str, Any], opset: int) -> Compute:
    """The 32-bit hash of each text's UTF-8 bytes, or of each number's; signed unless positive."""
    seed = int(attributes.get("seed", 0)) & _MASK
    dtype = np.uint32 if attributes.get("positive", 1) else np.int32

    def compute(given: Sequence[Any]) -> tuple[np.ndarray]:
        x = np.asarray(given[0])
        flat = x.reshape(-1)
        parts = [str(one).encode() if x.dtype.kind in "OU" else one.tobytes() for one in flat]
        hashes = np.array([murmur3_32(part, seed) for part in parts], np.uint32)
        return (hashes.view(dtype).reshape(x.shape),)

    return compute


def murmur3_32(data: bytes, seed: int) -> int:
    """Austin Appleby's MurmurHash3_x86_32."""
    whole = len(data) & ~3
    result = seed
    for word in np.frombuffer(data[:whole], "<u4").tolist():
        result = _rotated(result ^ _mixed(word), 13) * 5 + 0xE6546B64 & _MASK
    result ^= _mixed(int.from_bytes(data[whole:], "little"))
    result ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        result = (result ^ result >> shift) * factor & _MASK
    return result ^ result >> 16


def _mixed(word: int) -> int:
    return _rotated(word * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _MASK


HASHES: dict[str, HostOperator] = {"com.microsoft::MurmurHash3": murmur_hash}
