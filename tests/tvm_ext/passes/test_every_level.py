"""Every registered pass behind the graph passes changes a model, for each backend it is for.

Passes on the graph: ``tests/relay_passes/test_every_pass_fires.py``.
"""

import functools

import onnx
import pytest
from small_models import mlp, model, node, rand, value

import tvm_ext
from tvm_ext.passes import registry

TARGETS = {"cpu": "avx512", "cuda": "nvidia-h200"}
# Of a backend, the passes that have nothing to do for it.
NOT_FOR = {"cpu": ("CudaGraphs",), "cuda": ("ThreadsForLargeRuns", "VectorMath")}


def layers() -> onnx.ModelProto:
    """Three products, of which the second reads and writes storage of its own."""
    nodes = [node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"]) for i in range(3)]
    weights = {f"w{i}": rand(64, 64, seed=i) for i in range(3)}
    return model(nodes, [value("v0", [8, 64])], [value("v3", [8, 64])], **weights)


def tanh() -> onnx.ModelProto:
    rows = [value(name, ["N", 64]) for name in "xy"]
    return model([node("Tanh", ["x"], ["y"])], rows[:1], rows[1:])


@functools.cache
def changed_by(backend: str) -> set[str]:
    """The passes that change one of the models."""
    reports = [tvm_ext.compile(make(), TARGETS[backend]).report for make in (mlp, layers, tanh)]
    return {entry.name for report in reports for entry in report.passes if entry.changed}


@pytest.mark.parametrize("backend", TARGETS)
@pytest.mark.parametrize(
    "name", [e.name for e in registry.all_entries() if e.level != "graph" and e.in_pipelines]
)
def test_fires_where_it_should(name: str, backend: str) -> None:
    assert (name in changed_by(backend)) == (name not in NOT_FOR[backend])
