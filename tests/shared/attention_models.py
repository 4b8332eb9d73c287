"""Attention as exporters write it: models in ONNX, made by hand after what they really contain."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from small_models import model, node, rand, value

BATCH, HEADS, QUERIES, KEYS, DEPTH = 2, 4, 6, 10, 8
_TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


class Graph:
    """Nodes that are added one after the other, each with one result."""

    def __init__(self, dtype: str = "float32", opset: int = 17) -> None:
        self.dtype, self.opset = dtype, opset
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.inputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: list[int], dtype: int | None = None) -> str:
        """An input of the model."""
        self.inputs.append(value(name, shape, dtype or _TYPES[self.dtype]))
        return name

    def const(self, array: object, dtype: str = "") -> str:
        """A constant, in the type of the model or in its own."""
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(array, dtype or self.dtype)
        return name

    def ints(self, *numbers: int) -> str:
        """A constant list of sizes or axes."""
        return self.const(numbers, "int64")

    def op(self, name: str, *inputs: str, **attributes: object) -> str:
        """A node called after its operator."""
        result = f"v{len(self.nodes)}"
        label = f"{name}{len(self.nodes)}"
        self.nodes.append(node(name, list(inputs), [result], name=label, **attributes))
        return result

    def qkv(self, key_heads: int = HEADS) -> tuple[str, str, str]:
        """Query, key and value: [batch, heads, positions, elements]."""
        return (
            self.input("q", [BATCH, HEADS, QUERIES, DEPTH]),
            self.input("k", [BATCH, key_heads, KEYS, DEPTH]),
            self.input("v", [BATCH, key_heads, KEYS, DEPTH]),
        )

    def model(self, result: str, shape: list[int]) -> onnx.ModelProto:
        """The model with one result."""
        stored = [onnx.numpy_helper.from_array(a, name) for name, a in self.weights.items()]
        outputs = [value(result, shape, _TYPES[self.dtype])]
        graph = helper.make_graph(self.nodes, "attention", self.inputs, outputs, stored)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def turned(self, x: str) -> str:
        """With the last two axes exchanged."""
        return self.op("Transpose", x, perm=[0, 1, 3, 2])


RESULT = [BATCH, HEADS, QUERIES, DEPTH]


def bert(dtype: str = "float32") -> onnx.ModelProto:
    """Heads cut from rows, one transpose for the keys, a divisor, a mask of the padding."""
    g = Graph(dtype)
    heads = []
    for name, length in (("q", QUERIES), ("k", KEYS), ("v", KEYS)):
        rows = g.input(name, [BATCH, length, HEADS * DEPTH])
        cut = g.op("Reshape", rows, g.ints(BATCH, length, HEADS, DEPTH))
        heads.append(g.op("Transpose", cut, perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]))
    seen = g.op("Cast", g.input("seen", [BATCH, KEYS], TensorProto.INT64), to=_TYPES[dtype])
    seen = g.op("Unsqueeze", seen, g.ints(1, 2))
    hidden = g.op("Mul", g.op("Sub", g.const(1), seen), g.const(np.finfo(dtype).min))
    scores = g.op("Div", g.op("MatMul", heads[0], heads[1]), g.const(DEPTH**0.5))
    weights = g.op("Softmax", g.op("Add", scores, hidden), axis=-1)
    rows = g.op("Transpose", g.op("MatMul", weights, heads[2]), perm=[0, 2, 1, 3])
    joined = g.op("Reshape", rows, g.ints(BATCH, QUERIES, HEADS * DEPTH))
    return g.model(joined, [BATCH, QUERIES, HEADS * DEPTH])


def one_head() -> onnx.ModelProto:
    """Rows as the only head."""
    g = Graph()
    heads = []
    for name, length in (("q", QUERIES), ("k", KEYS), ("v", KEYS)):
        rows = g.input(name, [BATCH, length, DEPTH])
        cut = g.op("Reshape", rows, g.ints(BATCH, length, 1, DEPTH))
        heads.append(g.op("Transpose", cut, perm=[0, 2, 1, 3]))
    q, k, v = heads
    scores = g.op("Mul", g.op("MatMul", q, g.turned(k)), g.const(DEPTH**-0.5))
    weights = g.op("Softmax", scores, axis=-1)
    return g.model(g.op("MatMul", weights, v), [BATCH, 1, QUERIES, DEPTH])


def torch_causal() -> onnx.ModelProto:
    """PyTorch's scaled_dot_product_attention: both operands scaled, a triangle made on the way."""
    g = Graph()
    q, k, v = g.qkv()
    ones = g.const(np.ones((QUERIES, KEYS), bool), "bool")
    triangle = g.op("Trilu", ones, g.const(0, "int64"), upper=0)
    mask = g.op("Where", triangle, g.const(0.0), g.const(-np.inf))
    root = g.op("Sqrt", g.const(DEPTH**-0.5))
    scores = g.op("MatMul", g.op("Mul", q, root), g.op("Mul", g.turned(k), root))
    weights = g.op("Softmax", g.op("Add", scores, mask), axis=-1)
    return g.model(g.op("MatMul", weights, v), RESULT)


def torch_boolean() -> onnx.ModelProto:
    """The same with a boolean mask, and weights of rows without keys made zeros."""
    g = Graph()
    q, k, v = g.qkv()
    seen = g.input("seen", [BATCH, 1, QUERIES, KEYS], TensorProto.BOOL)
    mask = g.op("Where", seen, g.const(0.0), g.const(-np.inf))
    scores = g.op("MatMul", g.op("Mul", q, g.const(DEPTH**-0.5)), g.turned(k))
    weights = g.op("Softmax", g.op("Add", scores, mask), axis=-1)
    weights = g.op("Where", g.op("IsNaN", weights), g.const(0.0), weights)
    return g.model(g.op("MatMul", weights, v), RESULT)


def torch_dynamo() -> onnx.ModelProto:
    """PyTorch's exporter of today: the keys are transposed with batch and heads as one axis."""
    g = Graph()
    q, k, v = g.qkv()
    joined = g.op("Reshape", k, g.ints(-1, KEYS, DEPTH))
    turned = g.op("Transpose", joined, perm=[0, 2, 1])
    turned = g.op("Reshape", turned, g.ints(BATCH, HEADS, DEPTH, KEYS))
    root = g.const(DEPTH**-0.25)
    scores = g.op("MatMul", g.op("Mul", q, root), g.op("Mul", turned, root))
    weights = g.op("Softmax", scores, axis=-1)
    return g.model(g.op("MatMul", weights, v), RESULT)


def sink(is_first: bool = False, sizes: Sequence[object] = (BATCH, QUERIES, KEYS)) -> Any:
    """A score by head beside the others, dropped behind the softmax, as GPT-OSS is written."""
    g = Graph()
    batch, queries, keys = sizes
    q = g.input("q", [batch, HEADS, queries, DEPTH])
    k, v = (g.input(name, [batch, HEADS, keys, DEPTH]) for name in "kv")
    scores = g.op("Mul", g.op("MatMul", q, g.turned(k)), g.const(DEPTH**-0.5))
    lead = g.op("Shape", scores, start=0, end=3)
    column = g.const(np.linspace(-1, 1, HEADS).reshape(1, HEADS, 1, 1))
    column = g.op("Expand", column, g.op("Concat", lead, g.ints(1), axis=0))
    both = g.op("Concat", *([column, scores] if is_first else [scores, column]), axis=-1)
    less = g.op("Sub", both, g.op("ReduceMax", both, axes=[-1]))
    weights = g.op("Softmax", less, axis=-1)
    first, end = (1, np.iinfo("int64").max) if is_first else (0, -1)
    weights = g.op("Slice", weights, g.ints(first), g.ints(end), g.ints(3))
    return g.model(g.op("MatMul", weights, v), [batch, HEADS, queries, DEPTH])


LONGEST = 16


def decoder(has_table: bool, has_views: bool, mask_first: bool = False) -> onnx.ModelProto:
    """Attention of older exports behind keys of earlier runs, with a mask of any length.

    ``has_table``: rows of a triangle are cut out, as in GPT-2. ``has_views``: the product has one
    axis for batch and heads; with both this is GPT-NeoX. ``mask_first``: the mask of any length is
    added ahead of the triangle, as in com.microsoft's Attention.
    """
    g = Graph()
    q = g.input("q", ["b", HEADS, "s", DEPTH])
    kinds = ("k", "v")
    past = [g.input(f"past_{kind}", ["b", HEADS, "p", DEPTH]) for kind in kinds]
    new = [g.input(kind, ["b", HEADS, "s", DEPTH]) for kind in kinds]
    k, v = (g.op("Concat", *pair, axis=2) for pair in zip(past, new, strict=True))
    end, begin = (g.op("Shape", x, start=2, end=3) for x in (k, past[0]))
    apart = g.op("Concat", g.ints(-1, HEADS), g.op("Shape", q, start=2, end=3), end, axis=0)
    product = [q, k]
    if has_views:
        product = _beside(g, q, k)
    turned = g.op("Transpose", product[1], perm=[0, 2, 1] if has_views else [0, 1, 3, 2])
    scores = g.op("Mul", g.op("MatMul", product[0], turned), g.const(DEPTH**-0.5))
    if has_views:
        # torch.baddbmm
        scores = g.op("Add", g.op("ConstantOfShape", g.op("Shape", scores)), scores)
        scores = g.op("Reshape", scores, apart)
    mask = g.op("Unsqueeze", g.input("mask", ["b", "t"]), g.ints(1, 2))
    hidden = g.op("Mul", mask, g.const(-1e4))
    if mask_first:
        scores = g.op("Add", scores, hidden)
    if has_table:
        table = g.const(np.tri(LONGEST, dtype=bool)[None, None], "bool")
        rows = g.op("Slice", table, begin, end, g.ints(2))
        seen = g.op("Slice", rows, g.ints(0), end, g.ints(3))
        scores = g.op("Where", seen, scores, g.const(np.finfo("float32").min))
    if not mask_first:
        scores = g.op("Add", scores, hidden)
    return g.model(g.op("MatMul", g.op("Softmax", scores, axis=-1), v), ["b", HEADS, "s", DEPTH])


def _beside(g: Graph, *heads: str) -> list[str]:
    """Tensors with batch and heads as one axis."""
    found = []
    for one in heads:
        sizes = g.op("Shape", one, start=2, end=4)
        found.append(g.op("Reshape", one, g.op("Concat", g.ints(-1), sizes, axis=0)))
    return found


def masked_fill() -> onnx.ModelProto:
    """A score is replaced where a mask, repeated to full size, is set; half precision."""
    g = Graph("float16")
    q, k, v = g.qkv()
    hidden = g.input("hidden", [BATCH, 1, 1, KEYS], TensorProto.BOOL)
    hidden = g.op("Expand", hidden, g.ints(BATCH, HEADS, QUERIES, KEYS))
    scores = g.op("Mul", g.op("MatMul", q, g.turned(k)), g.const(DEPTH**-0.5))
    scores = g.op("Where", hidden, g.const(np.finfo("float16").min), scores)
    wide = g.op("Softmax", g.op("Cast", scores, to=TensorProto.FLOAT), axis=-1)
    weights = g.op("Cast", wide, to=TensorProto.FLOAT16)
    return g.model(g.op("MatMul", weights, v), RESULT)


def grouped() -> onnx.ModelProto:
    """Two heads of the query share one of keys and values, which are repeated."""
    g = Graph()
    q, k, v = g.qkv(HEADS // 2)

    def repeated(x: str) -> str:
        x = g.op("Unsqueeze", x, g.ints(2))
        x = g.op("Expand", x, g.ints(BATCH, HEADS // 2, 2, KEYS, DEPTH))
        return g.op("Reshape", x, g.ints(BATCH, HEADS, KEYS, DEPTH))

    seen = np.tri(QUERIES, KEYS, KEYS - QUERIES, dtype=bool)
    mask = g.const(np.where(seen, 0, np.finfo("float32").min)[None, None])
    scores = g.op("Mul", g.op("MatMul", q, g.turned(repeated(k))), g.const(DEPTH**-0.5))
    weights = g.op("Softmax", g.op("Add", scores, mask), axis=-1)
    return g.model(g.op("MatMul", weights, repeated(v)), RESULT)


def three_axes() -> onnx.ModelProto:
    """Heads and batch are one axis; a position bias is added before a mask."""
    g = Graph()
    rows = BATCH * HEADS
    q, k, v = (
        g.input(n, [rows, s, DEPTH]) for n, s in zip("qkv", (QUERIES, KEYS, KEYS), strict=True)
    )
    scores = g.op("MatMul", g.op("Div", q, g.const(2.0)), g.op("Transpose", k, perm=[0, 2, 1]))
    scores = g.op("Add", g.input("bias", [rows, QUERIES, KEYS]), scores)
    scores = g.op("Add", scores, g.input("mask", [QUERIES, KEYS]))
    weights = g.op("Softmax", scores, axis=2)
    return g.model(g.op("MatMul", weights, v), [rows, QUERIES, DEPTH])


def operator(**attributes: object) -> onnx.ModelProto:
    """ONNX's own Attention, with shared heads and a boolean mask."""
    g = Graph(opset=23)
    q, k, v = g.qkv(HEADS // 2)
    mask = g.input("seen", [QUERIES, KEYS], TensorProto.BOOL)
    return g.model(g.op("Attention", q, k, v, mask, **attributes), RESULT)


def microsoft(**attributes: object) -> onnx.ModelProto:
    """ONNX Runtime's MultiHeadAttention with biases, a mask of the padding and a position bias."""
    g = Graph()
    q = g.input("q", [BATCH, QUERIES, HEADS * DEPTH])
    k, v = (g.input(name, [BATCH, KEYS, HEADS * DEPTH]) for name in "kv")
    bias = g.const(np.random.default_rng(0).uniform(-1, 1, 3 * HEADS * DEPTH))
    mask = g.input("seen", [BATCH, KEYS], TensorProto.INT32)
    added = g.input("added", [1, HEADS, QUERIES, KEYS])
    given = {"num_heads": HEADS, "domain": "com.microsoft", **attributes}
    made = g.op("MultiHeadAttention", q, k, v, bias, mask, added, **given)
    return g.model(made, [BATCH, QUERIES, HEADS * DEPTH])


def microsoft_self(**attributes: object) -> onnx.ModelProto:
    """ONNX Runtime's Attention: the products that make query, key and value are part of it."""
    g = Graph()
    x = g.input("x", [BATCH, KEYS, 12])
    draw = np.random.default_rng(0)
    weights = g.const(draw.uniform(-1, 1, (12, 3 * HEADS * DEPTH)))
    bias = g.const(draw.uniform(-1, 1, 3 * HEADS * DEPTH))
    mask = g.input("seen", [BATCH, KEYS], TensorProto.INT32)
    given = {"num_heads": HEADS, "domain": "com.microsoft", **attributes}
    made = g.op("Attention", x, weights, bias, mask, **given)
    return g.model(made, [BATCH, KEYS, HEADS * DEPTH])


def attention_block() -> onnx.ModelProto:
    """Layer normalisation, a transpose, products, a softmax, a GELU and a residual."""
    nodes = [
        node("LayerNormalization", ["x", "scale", "shift"], ["n"], axis=-1),
        node("Transpose", ["n"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["n", "t"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "n"], ["a"]),
        node("Add", ["a", "x"], ["r"]),
        node("Transpose", ["r"], ["turned"], perm=[0, 2, 1]),
        node("ReduceMean", ["turned"], ["z"], axes=[2], keepdims=0),
    ]
    return model(
        nodes,
        [value("x", [2, 40, 64])],
        [value("z", [2, 64]), value("turned", [2, 64, 40])],
        scale=rand(64),
        shift=np.zeros(64, "float32"),
    )
