"""Attention that reads the heads of one product in place: structure, numbers, and refusals."""

from typing import Any

import numpy as np
import onnx
import pytest
from attention_models import Graph
from onnx import TensorProto, helper
from small_models import node
from thoroughness import one_in

import tvm_ext
from tvm_ext import CompiledModel

onnxruntime = pytest.importorskip("onnxruntime")

HEADS, DEPTH = 4, 8
WIDTH = HEADS * DEPTH


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype("float32") / 2


class Block(Graph):
    """An attention of open batch and length, with the products ahead of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "s", WIDTH]))

    def product(self, columns: int, seed: int = 0) -> str:
        """A matmul with bias."""
        weight = self.const(draw(WIDTH, columns, seed=seed))
        return self.op("Add", self.op("MatMul", "x", weight), self.const(draw(columns, seed=seed)))

    def heads(self, rows: str, number: int, size: int = DEPTH) -> str:
        """[batch, heads, positions, elements]."""
        cut = self.op("Reshape", rows, self.ints(0, 0, number, size))
        return self.op("Transpose", cut, perm=[0, 2, 1, 3])

    def attention(self, q: str, k: str, v: str, mask: str = "") -> str:
        """Scores, softmax, and the product with the values, as rows."""
        scores = self.op("MatMul", self.op("Mul", q, self.const(DEPTH**-0.5)), self.turned(k))
        scores = self.op("Add", scores, mask) if mask else scores
        found = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        rows = self.op("Transpose", found, perm=[0, 2, 1, 3])
        return self.op("Reshape", rows, self.ints(0, 0, WIDTH))

    def finished(self, result: str) -> onnx.ModelProto:
        """The model."""
        model = self.model(result, [1, 1, WIDTH])
        for dimension, name in zip(
            model.graph.output[0].type.tensor_type.shape.dim, "ns", strict=False
        ):
            dimension.dim_param = name
        return model


def three_products() -> onnx.ModelProto:
    g = Block()
    return g.finished(g.attention(*(g.heads(g.product(WIDTH, i), HEADS) for i in range(3))))


def masked() -> onnx.ModelProto:
    g = Block()
    g.inputs.append(helper.make_tensor_value_info("m", TensorProto.FLOAT, ["n", 1, 1, "s"]))
    return g.finished(g.attention(*(g.heads(g.product(WIDTH, i), HEADS) for i in range(3)), "m"))


def split() -> onnx.ModelProto:
    """As GPT-2: one product, cut into three."""
    g = Block()
    fields = [f"f{i}" for i in range(3)]
    sizes = g.ints(WIDTH, WIDTH, WIDTH)
    g.nodes.append(node("Split", [g.product(3 * WIDTH), sizes], fields, name="Split", axis=2))
    return g.finished(g.attention(*(g.heads(one, HEADS) for one in fields)))


def slices() -> onnx.ModelProto:
    """As GPT-2 by other exporters: the last of them ends with the columns, counted from behind."""
    g = Block()
    whole = g.product(3 * WIDTH)
    ends = ((0, WIDTH), (WIDTH, 2 * WIDTH), (-WIDTH, 2**62))
    cuts = [g.op("Slice", whole, g.ints(a), g.ints(b), g.ints(2), g.ints(1)) for a, b in ends]
    return g.finished(g.attention(*(g.heads(one, HEADS) for one in cuts)))


def read_twice() -> onnx.ModelProto:
    """Of the columns of keys some are those of values."""
    g = Block()
    whole = g.product(2 * WIDTH)
    ends = ((0, WIDTH), (DEPTH, DEPTH + WIDTH), (WIDTH, 2 * WIDTH))
    cuts = [g.op("Slice", whole, g.ints(a), g.ints(b), g.ints(-1)) for a, b in ends]
    return g.finished(g.attention(*(g.heads(one, HEADS) for one in cuts)))


def five_axes() -> onnx.ModelProto:
    """As timm's vision transformers: an axis of query, key and value."""
    g = Block()
    cut = g.op("Reshape", g.product(3 * WIDTH), g.ints(0, 0, 3, HEADS, DEPTH))
    moved = g.op("Transpose", cut, perm=[2, 0, 3, 1, 4])
    fields = [f"f{i}" for i in range(3)]
    g.nodes.append(node("Split", [moved, g.ints(1, 1, 1)], fields, name="Split", axis=0))
    return g.finished(g.attention(*(g.op("Squeeze", one, g.ints(0)) for one in fields)))


def run(model: onnx.ModelProto, **options: Any) -> tuple[CompiledModel, float]:
    """The compiled model, and how far from ONNX Runtime it is, of the largest result."""
    compiled = tvm_ext.compile(model, **options)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    farthest = 0.0
    for batch, length in ((1, 1), (2, 5), (1, 70)):
        given = {"x": draw(batch, length, WIDTH)}
        if len(model.graph.input) > 1:
            given["m"] = draw(batch, 1, 1, length)
        (wanted,) = session.run(None, given)
        (found,) = compiled.run(given).values()
        farthest = max(farthest, float(np.abs(found - wanted).max() / np.abs(wanted).max()))
    return compiled, farthest


@pytest.mark.extended
@pytest.mark.parametrize(
    "make", one_in(5, [three_products, masked, split, slices, read_twice, five_axes])
)
def test_one_product_and_one_attention(make: Any) -> None:
    compiled, farthest = run(make())
    assert farthest < 1e-5
    schedules = [kernel.schedule for kernel in compiled.report.kernels]
    assert schedules == ["symbolic tile", "attention"]
    plain, farthest = run(make(), disabled_passes=["FuseHeadsIntoAttention"])
    assert farthest < 1e-5
    assert len(plain.report.kernels) > 2


def test_every_other_column_stays_a_copy() -> None:
    g = Block()
    whole = g.product(6 * WIDTH)
    ends = [(2 * n * WIDTH, 2 * (n + 1) * WIDTH) for n in range(3)]
    cuts = [g.op("Slice", whole, g.ints(a), g.ints(b), g.ints(2), g.ints(2)) for a, b in ends]
    compiled, farthest = run(g.finished(g.attention(*(g.heads(one, HEADS) for one in cuts))))
    assert farthest < 1e-5
    assert len(compiled.report.kernels) > 2


@pytest.mark.slow
def test_heads_that_begin_within_another_stay_copies() -> None:
    """The first columns are 4 heads of 8, the others 2 of 8 that begin with column 36."""
    g = Block()
    sizes = g.ints(WIDTH, 4, WIDTH, WIDTH)
    fields = [f"f{i}" for i in range(4)]
    g.nodes.append(node("Split", [g.product(3 * WIDTH + 4), sizes], fields, name="Split", axis=2))
    kept = [fields[0], fields[2], fields[3]]
    compiled, farthest = run(g.finished(g.attention(*(g.heads(one, HEADS) for one in kept))))
    assert farthest < 1e-5
    assert "attention" in [kernel.schedule for kernel in compiled.report.kernels]
