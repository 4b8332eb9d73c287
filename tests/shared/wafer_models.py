"""Small models for the wafer tests, lowered once."""

from functools import lru_cache

import numpy as np
from small_models import model, node, rand, value

from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.wafer.model_cost import ModelCost, mesh_target, model_cost

WIDTH = 32


def layers(count: int = 3, rows: int = 16):
    """``count`` products with square weights and a ReLU each; the last adds the first's result."""
    weights = {f"w{n}": rand(WIDTH, WIDTH, seed=n) for n in range(count)}
    nodes, last = [], "x"
    for number in range(count):
        nodes += [
            node("MatMul", [last, f"w{number}"], [f"m{number}"], name=f"matmul{number}"),
            node("Relu", [f"m{number}"], [f"r{number}"], name=f"relu{number}"),
        ]
        last = f"r{number}"
    nodes.append(node("Add", [last, "r0"], ["y"], name="add"))
    return model(nodes, [value("x", [rows, WIDTH])], [value("y", [rows, WIDTH])], **weights)


def turned():
    """A product of a view of another product's result."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="first"),
        node("Reshape", ["m", "shape"], ["v"], name="view"),
        node("MatMul", ["v", "u"], ["y"], name="second"),
    ]
    constants = {"w": rand(8, 12), "u": rand(6, 4), "shape": np.array([16, 6], np.int64)}
    return model(nodes, [value("x", [8, 8])], [value("y", [16, 4])], **constants)


def small_mesh(**changes: object) -> WaferDescription:
    """A mesh of 16x16 PEs, with other numbers where they are given."""
    return WaferDescription(**(mesh_target("mesh16").model_dump() | changes))


@lru_cache(maxsize=4)
def layers_cost(rows: int = 16) -> ModelCost:
    return model_cost(layers(rows=rows), "mesh16")
