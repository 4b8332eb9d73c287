"""Tree ensembles beside ONNX Runtime, by the calls that a user makes, on one thread.

Random forests of given depth, as ``TreeEnsembleRegressor`` with dynamic batch. Two programs take
turns in one process; of each the shortest of many calls counts, since a call takes microseconds.

    python benchmarks/trees.py --trees 100 --depths 6 12 --rows 1 10 1000
"""

import argparse
import time
from collections.abc import Callable
from itertools import product

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import tvm_ext
from tvm_ext.hardware.cpu.host import host_description

_COLUMNS = 20
_SECONDS = 0.3


def forest(trees: int, depth: int, random: np.random.Generator) -> onnx.ModelProto:
    """Trees whose branches end at each level below the second with probability 0.1."""
    names = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    table: dict[str, list] = {name: [] for name in names}
    leaves: list[tuple[int, int]] = []

    def grow(tree: int, count: int, level: int) -> int:
        """Adds the nodes from number ``count`` on; returns the number after them."""
        ends = level == depth or (level > 1 and random.random() < 0.1)
        row = len(table["nodeids"])
        mode = "LEAF" if ends else "BRANCH_LEQ"
        values = (tree, count, int(random.integers(_COLUMNS)), mode, float(random.normal()), 0, 0)
        for name, value in zip(names, values, strict=True):
            table[name].append(value)
        if ends:
            leaves.append((tree, count))
            return count + 1
        table["truenodeids"][row] = count + 1
        table["falsenodeids"][row] = grow(tree, count + 1, level + 1)
        return grow(tree, table["falsenodeids"][row], level + 1)

    for tree in range(trees):
        grow(tree, 0, 0)
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
        target_treeids=[tree for tree, _ in leaves], target_nodeids=[leaf for _, leaf in leaves],
        target_ids=[0] * len(leaves), target_weights=random.normal(size=len(leaves)).tolist(),
        **{f"nodes_{name}": values for name, values in table.items()},
    )  # fmt: skip
    shapes = {"x": ["N", _COLUMNS], "y": ["N", 1]}
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items())
    opset = helper.make_opsetid("ai.onnx.ml", 3)
    return helper.make_model(
        helper.make_graph([node], "forest", [x], [y]), opset_imports=[opset], ir_version=8
    )


def shortest(calls: list[Callable[[], object]]) -> list[float]:
    """Microseconds of the shortest call of each, in turns."""
    best = [float("inf")] * len(calls)
    end = time.perf_counter() + _SECONDS * len(calls)
    while time.perf_counter() < end:
        for place, call in enumerate(calls):
            for _ in range(20):
                begun = time.perf_counter()
                call()
                best[place] = min(best[place], time.perf_counter() - begun)
    return [1e6 * one for one in best]


def main() -> None:
    """Prints a line for each depth and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--depths", type=int, nargs="+", default=[3, 6, 12])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 10, 1000])
    chosen = parser.parse_args()
    random = np.random.default_rng(0)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    print(
        "| trees | depth | rows | ours, us | ONNX Runtime / ours |\n| --: | --: | --: | --: | --: |"
    )
    models: dict[int, tuple] = {}
    for depth, rows in product(chosen.depths, chosen.rows):
        if depth not in models:
            proto = forest(chosen.trees, depth, random)
            session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
            models[depth] = tvm_ext.compile(proto, host_description().with_cores(1)), session
        model, session = models[depth]
        feed = {"x": random.normal(size=(rows, _COLUMNS)).astype(np.float32)}
        np.testing.assert_allclose(model.run(feed)["y"], session.run(None, feed)[0], 1e-4, 1e-5)
        ours, theirs = shortest([lambda: model.run(feed), lambda: session.run(None, feed)])  # noqa: B023
        print(
            f"| {chosen.trees} | {depth} | {rows} | {ours:.1f} | {theirs / ours:.2f} |", flush=True
        )


if __name__ == "__main__":
    main()
