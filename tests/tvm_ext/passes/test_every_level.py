"""Every registered pass behind the graph passes changes a model, for each backend it is for.

Passes on the graph: ``tests/relay_passes/test_every_pass_fires.py``.
"""

import functools

import numpy as np
import onnx
import pytest
from small_models import mlp, model, node, rand, value

import tvm_ext
from tvm_ext.passes import registry

TARGETS = {"cpu": "avx512", "cuda": "nvidia-h200"}
# Of a backend, the passes that have nothing to do for it; ComputePrimValue, which TVM's virtual
# machine wants, changes nothing as our import makes no numbers beside sizes.
# Only a step of training gives parameters away; only one for several devices has an all-reduce.
# Those of MLIR do nothing unless they are asked for: tests/tvm_ext/mlir has programs for them.
OF_MLIR = ("MlirCodeGeneration", "MlirLinalgFusion", "MlirMemoryOptimization")
NOT_FOR = {
    "cpu": ("AsyncAllReduce", "ComputePrimValue", "CudaGraphs", "DonateParams", *OF_MLIR),
    "cuda": (
        *("AsyncAllReduce", "CoalesceAccesses", "ComputePrimValue", "DirectKernelCalls", *OF_MLIR),
        *("DonateParams", "ResultsToOutParams", "ThreadsForLargeRuns", "VectorMath"),
    ),
}


# What "two_wide" needs in another order and not as it is; a GPU adds up products in parts.
LIMIT = {"cpu": "48KiB", "cuda": "560KiB"}


def layers() -> onnx.ModelProto:
    """Three products, of which the second reads and writes storage of its own."""
    nodes = [node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"]) for i in range(3)]
    weights = {f"w{i}": rand(64, 64, seed=i) for i in range(3)}
    return model(nodes, [value("v0", [8, 64])], [value("v3", [8, 64])], **weights)


def tanh() -> onnx.ModelProto:
    rows = [value(name, ["N", 64]) for name in "xy"]
    return model([node("Tanh", ["x"], ["y"])], rows[:1], rows[1:])


def long_rows() -> onnx.ModelProto:
    """A GPU adds these up in parts, which one kernel leaves for another."""
    rows = [value("x", [2, 2**18])], [value("y", [2, 1])]
    return model([node("ReduceSum", ["x", "axes"], ["y"])], *rows, axes=np.array([1]))


def elements() -> onnx.ModelProto:
    """An index tensor of other sizes than the data's, and indices that nothing limits."""
    given = [value("x", ["N", 4]), value("at", ["M", 4], onnx.TensorProto.INT64)]
    return model([node("GatherElements", ["x", "at"], ["y"])], given, [value("y", ["M", 4])])


def running_sums() -> onnx.ModelProto:
    rows = [value(name, [16, 64]) for name in "xy"]
    return model([node("CumSum", ["x", "axis"], ["y"])], rows[:1], rows[1:], axis=np.array(0))


def border() -> onnx.ModelProto:
    """A CPU copies the image to where it has a border, for the whole call."""
    nodes = [node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])]
    images = [value(name, [1, 16, 40, 40]) for name in "xy"]
    return model(nodes, images[:1], images[1:], w=rand(16, 16, 3, 3))


def two_wide() -> onnx.ModelProto:
    """Two values of 32 KiB, of which only one has to be there at a time."""
    nodes = [
        node("Softmax", ["x"], ["s"], axis=-1),
        node("MatMul", ["x", "up"], ["a"]),
        node("MatMul", ["s", "up"], ["b"]),
        node("MatMul", ["a", "down"], ["c"]),
        node("MatMul", ["b", "down"], ["d"]),
        node("Mul", ["c", "d"], ["y"]),
    ]
    weights = {"up": rand(64, 1024), "down": rand(1024, 64)}
    return model(nodes, [value("x", [8, 64])], [value("y", [8, 64])], **weights)


MODELS = (mlp, layers, tanh, long_rows, elements, running_sums, border)


@functools.cache
def changed_by(backend: str) -> set[str]:
    """The passes that change one of the models."""
    programs = [tvm_ext.compile(make(), TARGETS[backend]) for make in MODELS]
    programs.append(tvm_ext.compile(tanh(), TARGETS[backend], input_shapes={"x": ["N:1:8", 64]}))
    programs.append(tvm_ext.compile(two_wide(), TARGETS[backend], memory_limit=LIMIT[backend]))
    reports = [program.report for program in programs]
    return {entry.name for report in reports for entry in report.passes if entry.changed}


@pytest.mark.parametrize("backend", TARGETS)
@pytest.mark.parametrize(
    "name", [e.name for e in registry.all_entries() if e.level != "graph" and e.in_pipelines]
)
def test_fires_where_it_should(name: str, backend: str) -> None:
    assert (name in changed_by(backend)) == (name not in NOT_FOR[backend])
