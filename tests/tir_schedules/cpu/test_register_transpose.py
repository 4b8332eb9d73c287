"""Which element ends up in which lane, followed through the shuffles."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from lowering import kernel_of
from symbolic_extents import built
from tvm import relax, runtime, tirx

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.cpu.elementwise import CpuTranspose
from tvm_ext.tir_schedules.cpu.register_transpose import (
    deinterleaved,
    interleaved,
    strided,
    strided_starts,
    transposed,
)


class Tracer:
    """Names vectors, and knows for each lane of each the (row, lane) it came from."""

    def __init__(self, rows: list[list[Any]]) -> None:
        self.size = len(rows[0])
        self.rows = [tirx.Var(f"row{i}", f"float32x{self.size}") for i in range(len(rows))]
        self.contents = list(zip(self.rows, rows, strict=True))

    def lanes(self, vector: Any) -> list[Any]:
        return next(lanes for var, lanes in self.contents if var.same_as(vector))

    def __call__(self, value: Any) -> Any:
        assert isinstance(value, tirx.Shuffle)
        given = [lane for vector in value.vectors for lane in self.lanes(vector)]
        var = tirx.Var("v", str(value.ty))
        self.contents.append((var, [given[int(i)] for i in value.indices]))
        return var

    def results(self, vectors: list[Any]) -> list[list[Any]]:
        return [self.lanes(vector) for vector in vectors]


def rows(count: int, size: int) -> list[list[Any]]:
    return [[(row, lane) for lane in range(size)] for row in range(count)]


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_transposed(size: int) -> None:
    name = Tracer(rows(size, size))
    found = name.results(transposed(name.rows, size, name))
    assert found == [[(row, lane) for row in range(size)] for lane in range(size)]
    # log2 stages of one exchange for every vector.
    assert len(name.contents) - size == size * (size.bit_length() - 1)


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 7])
def test_interleaved_and_back(count: int, size: int) -> None:
    name = Tracer(rows(count, size))
    found = name.results(interleaved(name.rows, size, name))
    flat = [element for vector in found for element in vector]
    assert flat == [(row, lane) for lane in range(size) for row in range(count)]
    back = Tracer(found)
    assert back.results(deinterleaved(back.rows, size, back)) == rows(count, size)


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("stride", [2, 3, 4])
def test_strided(stride: int, size: int) -> None:
    starts = strided_starts(stride, size)
    name = Tracer([list(range(start, start + size)) for start in starts])
    (found,) = name.results([strided(name.rows, stride, size, name)])
    assert found == list(range(0, stride * size, stride))
    # Nothing is loaded beyond the last element that is used.
    assert starts[-1] + size - 1 <= (size - 1) * stride


def test_numbers_that_are_rounded_on_the_way() -> None:
    """To the nearest bfloat16, of two as near the even one, as NumPy's; NaN stays NaN."""
    x = np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32)
    # Halfway between two, NaN with a low bit only, the largest number, which rounds to infinity.
    bits = [0x3F808000, 0x3F818000, 0x7F800001, 0xFF800001, 0x7F7FFFFF, 0x00000001]
    x[0, : len(bits)] = np.array(bits, np.uint32).view(np.float32)
    func = kernel_of(
        lambda x: relax.op.permute_dims(relax.op.astype(x, "bfloat16"), [1, 0]),
        (x.shape, "float32"),
    )
    found = apply_template(CpuTranspose(), func, host_description())
    assert isinstance(found, ScheduledKernel), found
    out = runtime.tensor(np.zeros((64, 48), ml_dtypes.bfloat16))
    built(found.func)(runtime.tensor(x), out)
    with np.errstate(all="ignore"):
        wanted = x.T.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(out.numpy().astype(np.float32), wanted)
