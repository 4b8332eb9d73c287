"""Workspaces of kernels for a GPU are planned with all storage, so that graphs can hold them."""

import numpy as np
import tvm
from emulated_models import emulated_model
from small_models import model, node, rand, value

import tvm_ext
from tvm_ext.passes.plan_workspaces import plan_workspaces
from tvm_ext.relay_passes.cuda_graphs import launches_only


def thin_layers():
    """Three products of few rows and a long reduction, which is split over blocks."""
    nodes = [node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"]) for i in range(3)]
    weights = {f"w{i}": rand(1536, 1536, seed=i) / np.float32(40) for i in range(3)}
    return model(nodes, [value("v0", [8, 1536])], [value("v3", [8, 1536])], **weights)


def test_split_reductions_are_in_graphs() -> None:
    compiled = tvm_ext.compile(thin_layers(), target="nvidia-h200")
    assert (compiled.report.device.graphs, compiled.report.device.graph_kernels) == (1, 1)
    # The parts of the sums are counted with the other buffers.
    assert compiled.report.memory.planned_peak_bytes > 3 * 8 * 1536 * 4


def test_numbers_are_the_same() -> None:
    x = rand(8, 1536)
    wanted = x
    for i in range(3):
        wanted = wanted @ (rand(1536, 1536, seed=i) / np.float32(40))
    found = emulated_model(thin_layers()).run({"v0": x})["v3"]
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def test_modules_without_workspaces_stay() -> None:
    mod = tvm.IRModule({})
    assert plan_workspaces(mod).same_as(mod)
    assert launches_only(mod)
