"""Runs of sizes that were met before take no memory from the system, and many sizes little."""

import ctypes
import random

import numpy as np
import onnx
import pytest
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext


class _Statistics(ctypes.Structure):
    """What glibc's ``mallinfo2`` returns (malloc.h)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def allocated() -> int:
    """Bytes that the process has allocated and not given back."""
    statistics = ctypes.CDLL(None).mallinfo2
    statistics.restype = _Statistics
    found = statistics()
    return int(found.uordblks) + int(found.hblkhd)


def convolutions() -> onnx.ModelProto:
    """Layers whose maps of any size take megabytes."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "v"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("GlobalAveragePool", ["c"], ["y"]),
    ]
    shapes = [value("x", ["n", 8, "h", "w_"])], [value("y", ["n", 16, 1, 1])]
    return model(nodes, *shapes, w=rand(16, 8, 3, 3), v=rand(16, 16, 3, 3))


@pytest.fixture(scope="module")
def compiled() -> tvm_ext.CompiledModel:
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("not glibc 2.33 or newer")
    return tvm_ext.compile(convolutions(), HOST)


def image(n: int, h: int, w: int) -> dict[str, np.ndarray]:
    return {"x": np.zeros((n, 8, h, w), "float32")}


@pytest.mark.extended
def test_a_repeated_size_allocates_nothing(compiled: tvm_ext.CompiledModel) -> None:
    every = [image(1, 100, 120), image(3, 64, 64)]
    for inputs in every * 3:
        compiled.run(inputs)
    before = allocated()
    for inputs in every * 50:
        compiled.run(inputs)
    # One map of the smaller images has 786 kB.
    assert allocated() - before < 20_000


@pytest.mark.slow
def test_changing_sizes_take_no_more_and_more(compiled: tvm_ext.CompiledModel) -> None:
    sizes = random.Random(0)
    after = []
    for _ in range(1000):
        compiled.run(image(sizes.randint(1, 3), sizes.randint(1, 60), sizes.randint(1, 60)))
        after.append(allocated())
    # The largest of the sizes were met by then, or others of the same power of two.
    assert after[-1] <= max(after[:300]) + 20_000


def test_results_that_nobody_has_are_used_by_the_next_run() -> None:
    """The virtual machine keeps them until then otherwise, and every run makes others."""
    rows = [value("x", [64, 1024])], [value("y", [64, 1024])]
    program = tvm_ext.compile(model([node("Softmax", ["x"], ["y"])], *rows), HOST)
    inputs = {"x": np.zeros((64, 1024), "float32")}
    first = program.run(inputs)["y"].ctypes.data
    assert program.run(inputs)["y"].ctypes.data == first
    kept = program.run(inputs)["y"]
    kept[:] = 5
    other = program.run(inputs)["y"]
    assert other.ctypes.data != kept.ctypes.data
    assert (kept == 5).all()
