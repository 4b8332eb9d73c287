"""Gradients of ONNX operators that are imported as kernels, and through If and Loop.

Each is compared with central differences in float64.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from thoroughness import one_in
from tvm import relax
from unoptimised import machine_of

from tvm_ext.onnx_frontend.trainable import import_trainable
from tvm_ext.training import SGD, MeanSquaredError
from tvm_ext.training.step_program import StepOptions, step_programs

_STEP, _TOLERANCE = 1e-5, 1e-6
# TVM resizes in float32. The loss is a square of what is resized, so that any step is exact.
_STEP_OF_RESIZE, _TOLERANCE_OF_RESIZE = 0.25, 1e-5
_DOUBLE = TensorProto.DOUBLE


def _model(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int],
    constants: dict[str, Any],
    extra: dict[str, Sequence[int]] | None = None,
    opset: int = 23,
) -> onnx.ModelProto:
    """From ``h = x * w`` to ``y``; ``extra`` are more weights."""
    weights = {"w": shape, **(extra or {})}
    rng = np.random.default_rng(5)
    stored = [numpy_helper.from_array(rng.uniform(0.5, 1.5, s), n) for n, s in weights.items()]
    stored += [numpy_helper.from_array(np.array(v), name) for name, v in constants.items()]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["h"], name="scaled"), *nodes],
        "small",
        [helper.make_tensor_value_info("x", _DOUBLE, shape)],
        [helper.make_tensor_value_info("y", _DOUBLE, None)],
        stored,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def _one(kind: str, shape: Sequence[int], *given: Any, outputs: int = 1, **attributes: Any) -> Any:
    """A model of one node, whose operands are ``h`` and these constants, names or weights."""
    names, constants, weights = ["h"], {}, {}
    for place, value in enumerate(given):
        name = f"c{place}"
        if isinstance(value, str):
            name = value
        elif isinstance(value, tuple):
            weights[name] = value
        elif value is not None:
            constants[name] = value
        names.append("" if value is None else name)
    opset = attributes.pop("opset", 23)
    results = ["y", *(f"z{n}" for n in range(1, outputs))]
    node = helper.make_node(kind, names, results, name=kind.lower(), **attributes)
    return lambda: _model([node], shape, constants, weights, opset)


def _floats(*values: float) -> np.ndarray:
    return np.array(values, "float32")


_UP = _floats(1, 1, 2, 1.5)


def _scalar(name: str, kind: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, [])


def _choosing(limit: float) -> Callable[[], onnx.ModelProto]:
    """An If whose branches have weights, and one more If in one of them."""

    def branch(nodes: list[onnx.NodeProto], result: str) -> onnx.GraphProto:
        typed = helper.make_tensor_value_info(result, _DOUBLE, [3, 4])
        return helper.make_graph(nodes, result, [], [typed])

    def build() -> onnx.ModelProto:
        node = helper.make_node
        inner = node("If", ["is_small"], ["inner"], name="inner",
                     then_branch=branch([node("Tanh", ["h"], ["t2"])], "t2"),
                     else_branch=branch([node("Mul", ["h", "v"], ["e2"])], "e2"))  # fmt: skip
        nodes = [
            node("ReduceSum", ["x"], ["total"], keepdims=0),
            node("Less", ["total", "limit"], ["is_small"]),
            node("If", ["is_small"], ["chosen"], name="choice",
                 then_branch=branch([inner, node("Mul", ["inner", "h"], ["t1"])], "t1"),
                 else_branch=branch([node("MatMul", ["h", "m"], ["e1"])], "e1")),
            node("Mul", ["chosen", "h"], ["y"]),
        ]  # fmt: skip
        return _model(nodes, [3, 4], {"limit": limit}, {"v": [4], "m": [4, 4]})

    return build


def _repeating(trips: int) -> Callable[[], onnx.ModelProto]:
    """A Loop of a weight, and of its states."""

    def build() -> onnx.ModelProto:
        node = helper.make_node
        nodes = [node("MatMul", ["s", "m"], ["p"]), node("Tanh", ["p"], ["s2"])]
        going = [node("Identity", ["go"], ["on"])]
        state = [helper.make_tensor_value_info(n, _DOUBLE, [2, 3]) for n in ("s", "s2")]
        body = helper.make_graph(
            [*nodes, *going],
            "body",
            [_scalar("i", TensorProto.INT64), _scalar("go", TensorProto.BOOL), state[0]],
            [_scalar("on", TensorProto.BOOL), state[1]],
        )
        loop = node("Loop", ["trips", "", "h"], ["last"], name="loop", body=body)
        constants = {"trips": np.int64(trips)}
        ending = node("Mul", ["last", "h"], ["y"])
        return _model([loop, ending], [2, 3], constants, {"m": [3, 3]})

    return build


def _ending(limit: float) -> Callable[[], onnx.ModelProto]:
    """A Loop that goes on as long as a sum of its state is below a limit, nine times at most."""

    def build() -> onnx.ModelProto:
        node = helper.make_node
        nodes = [
            node("MatMul", ["s", "m"], ["p"]),
            node("Tanh", ["p"], ["s2"]),
            node("ReduceL1", ["s2"], ["size"], keepdims=0),
            node("Less", ["size", "limit"], ["is_small"]),
            node("Less", ["i", "last"], ["is_early"]),
            node("And", ["is_small", "is_early"], ["on"]),
        ]
        state = [helper.make_tensor_value_info(n, _DOUBLE, [2, 3]) for n in ("s", "s2")]
        body = helper.make_graph(
            nodes,
            "body",
            [_scalar("i", TensorProto.INT64), _scalar("go", TensorProto.BOOL), state[0]],
            [_scalar("on", TensorProto.BOOL), state[1]],
        )
        loop = node("Loop", ["", "going", "h"], ["end"], name="loop", body=body)
        constants = {"limit": limit, "last": np.int64(8), "going": np.array(True)}
        ending = node("Mul", ["end", "h"], ["y"])
        return _model([loop, ending], [2, 3], constants, {"m": [3, 3]})

    return build


CASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "tile": _one("Tile", (2, 3), [2, 3]),
    "running sums": _one("CumSum", (2, 3, 2), 1),
    "running sums from behind": _one("CumSum", (2, 3), -1, reverse=1, exclusive=1),
    "largest": _one("TopK", (3, 8), [2], outputs=2),
    "whole rows sorted": _one("TopK", (3, 8), [8], outputs=2),
    "smallest along an axis": _one("TopK", (5, 3), [2], outputs=2, axis=0, largest=0),
    "resize to nearest": _one("Resize", (1, 2, 4, 4), None, _UP, mode="nearest"),
    "resize by lines": _one("Resize", (1, 2, 4, 4), None, _UP, mode="linear"),
    "resize by cubes": _one("Resize", (1, 1, 4, 4), None, _UP, mode="cubic"),
    "resize with aligned corners": _one(
        "Resize", (1, 2, 4, 4), None, None, [1, 2, 7, 6], mode="linear",
        coordinate_transformation_mode="align_corners"),
    "resize of one axis": _one("Resize", (1, 2, 5), None, _floats(1, 1, 1.6), mode="linear"),
    "resize down": _one("Resize", (1, 1, 6, 6), None, _floats(1, 1, 0.5, 0.5), mode="linear",
                        antialias=1),
    "pad by mirrors": _one("Pad", (2, 4), [0, 1, 0, 2], mode="reflect"),
    "pad by edges": _one("Pad", (2, 4), [1, 1, 0, 2], mode="edge"),
    "pad around": _one("Pad", (2, 4), [0, 1, 0, 2], mode="wrap"),
    "pad by less than nothing": _one("Pad", (2, 4), [0, -1, 0, 2]),
    "einsum": _one("Einsum", (3, 4), (4, 5), equation="ij,jk->ki"),
    "einsum of three": _one("Einsum", (3, 4), (4, 5), (5,), equation="ij,jk,k->i"),
    "slices of batches": _one("GatherND", (2, 3, 4), [[[0], [1]], [[2], [-1]]], batch_dims=1),
    "elements": _one("GatherND", (2, 3), [[0, -1], [1, 1], [0, -1]]),
    "triangle": _one("Trilu", (4, 4), 1, upper=1),
    "replaced elements": _one("ScatterElements", (4, 3), [[0, 2, -1], [1, 0, 2]], (2, 3)),
    "added elements": _one(
        "ScatterElements", (3, 3), [[0, 0], [2, 1], [1, -1]], (3, 2), axis=1, reduction="add"),
    "replaced slices": _one("ScatterND", (4, 3), [[2], [-4]], (2, 3)),
    "added slices": _one(
        "ScatterND", (2, 3, 2), [[1, 2], [1, 2], [0, -3]], (3, 2), reduction="add"),
    "columns to image": _one("Col2Im", (1, 4, 4), [3, 3], [2, 2]),
    "columns far apart to images": _one(
        "Col2Im", (2, 12, 6), [5, 6], [2, 3], strides=[2, 2], dilations=[1, 2], pads=[1, 1, 0, 1]),
    "reversed sequences": _one("ReverseSequence", (4, 2), [2, 3], batch_axis=1, time_axis=0),
    "attention": _one("Attention", (1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)),
    "causal attention of fewer heads": _one(
        "Attention", (1, 4, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), is_causal=1),
    "attention with a mask": _one(
        "Attention", (1, 3, 8), (1, 3, 8), (1, 3, 8), np.tril(np.ones((3, 3), bool)),
        q_num_heads=2, kv_num_heads=2, softcap=2.0),
    "if": _choosing(1e9),
    "if not": _choosing(-1e9),
    "loop that is counted": _repeating(150),
    "loop that ends by a condition": _ending(1e9),
    "loop that ends by its state": _ending(4.0),
}  # fmt: skip


@pytest.mark.parametrize("case", one_in(8, CASES, pytest.mark.extended))
def test_gradient_is_the_limit_of_differences(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Three iterations, and then the loop calls itself: a small program of every form.
    loops = importlib.import_module("tvm_ext.onnx_frontend.control_flow.convert_loop")
    monkeypatch.setattr(loops, "LEVELS", 1)
    trainable = import_trainable(CASES[case](), None, None)
    (program,) = step_programs(trainable, MeanSquaredError(), SGD(lr=1.0), StepOptions())
    mod = relax.transform.LegalizeOps()(program.mod)
    machine = machine_of(mod)
    rng = np.random.default_rng(2)
    given = [rng.uniform(-1, 1, [int(n) for n in spec.shape]) for spec in program.given]

    def step(weights: Sequence[np.ndarray]) -> list[np.ndarray]:
        arrays = [*given, *weights, np.array(1.0)]
        return [one.numpy() for one in machine["main"](*map(tvm.runtime.tensor, arrays))]

    step_length, limit = _STEP, _TOLERANCE
    if case.startswith("resize"):
        step_length, limit = _STEP_OF_RESIZE, _TOLERANCE_OF_RESIZE
    weights = list(trainable.weights.values())
    _, *moved = step(weights)
    for place, (before, after) in enumerate(zip(weights, moved, strict=True)):
        directions = [rng.standard_normal(before.shape) for _ in range(3)]
        for direction in directions:
            losses = []
            for sign in (1, -1):
                other = list(weights)
                other[place] = before + sign * step_length * direction
                losses.append(float(step(other)[0]))
            expected = (losses[0] - losses[1]) / (2 * step_length)
            found = np.sum((before - after) * direction)
            assert found == pytest.approx(expected, rel=limit, abs=limit)
