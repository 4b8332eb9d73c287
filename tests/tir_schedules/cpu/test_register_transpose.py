"""Which element ends up in which lane, followed through the shuffles."""

from typing import Any

import pytest
from tvm import tirx

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
