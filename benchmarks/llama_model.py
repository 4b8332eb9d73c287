"""Decoders of Llama's form with random weights, as large as those that are published.

Batch, length and past are open, and keys and values of earlier tokens are inputs and outputs under
the names that exporters give them. Of the weights a form of storage is chosen: float32, int8 with
activations that each run rounds to 8 bits (DynamicQuantizeLinear and MatMulInteger), or 4 bits in
blocks (MatMulNBits). Attention is spelled out, or is GroupQueryAttention of com.microsoft, which is
what ONNX Runtime has the best kernels for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Storage = Literal["float32", "int8", "int4"]
STORAGES: tuple[Storage, ...] = ("float32", "int8", "int4")

_OPSET, _IR_VERSION, _BLOCK = 20, 9, 32
_LEAST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class LlamaForm:
    """Sizes of a decoder; those of SmolLM2-135M unless others are given.

    Attributes
    ----------
    layers, hidden, heads, shared_heads, depth, intermediate, vocabulary : int
        ``shared_heads`` of keys and values, each for as many of the ``heads``; ``depth`` of a head.
    positions : int
        Rows of the tables of rotary embeddings.
    storage : str
        Of the weights of matmuls.
    accuracy_level : int
        Of products with 4 bits; with 4 the other operand is rounded to bytes, in blocks.
    is_grouped : bool
        Whether attention is GroupQueryAttention, with its rotary embedding.
    """

    layers: int = 30
    hidden: int = 576
    heads: int = 9
    shared_heads: int = 3
    depth: int = 64
    intermediate: int = 1536
    vocabulary: int = 49152
    positions: int = 8192
    storage: Storage = "float32"
    accuracy_level: int = 0
    is_grouped: bool = False

    def weights(self) -> int:
        """Numbers in the matrices that a run multiplies with."""
        own = 2 * self.hidden * self.depth * (self.heads + self.shared_heads)
        layer = own + 3 * self.hidden * self.intermediate
        return self.layers * layer + self.hidden * self.vocabulary

    def weight_bytes(self) -> int:
        """What a run reads of them, with the scales of blocks."""
        bits = {"float32": 32.0, "int8": 8.0, "int4": 4 + 32 / _BLOCK}[self.storage]
        return int(self.weights() * bits / 8)

    def inputs(self, batch: int, length: int, past: int, seed: int = 0) -> dict[str, np.ndarray]:
        """Random tokens that follow ``past`` random keys and values."""
        random = np.random.default_rng(seed)
        state = (batch, self.shared_heads, past, self.depth)
        made: dict[str, np.ndarray] = {
            "input_ids": random.integers(0, self.vocabulary, (batch, length)),
            **self._places(batch, length, past),
        }
        for layer in range(self.layers):
            for name in ("key", "value"):
                made[f"past_key_values.{layer}.{name}"] = random.standard_normal(
                    state, dtype=np.float32
                )
        return made

    def _places(self, batch: int, length: int, past: int) -> dict[str, np.ndarray]:
        """What says where the tokens are."""
        total = past + length
        if self.is_grouped:
            last = np.full(batch, total - 1, np.int32)
            return {"seqlens_k": last, "total_sequence_length": np.array(total, np.int32)}
        return {
            "attention_mask": np.ones((batch, total), np.int64),
            "position_ids": np.tile(np.arange(past, total), (batch, 1)),
        }


def llama_model(form: LlamaForm, seed: int = 0) -> onnx.ModelProto:
    """The decoder as an ONNX model."""
    return _Decoder(form, np.random.default_rng(seed)).model()


class _Decoder:
    """Nodes and weights, in the order in which they are made."""

    def __init__(self, form: LlamaForm, random: np.random.Generator) -> None:
        self.form = form
        self.random = random
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: list[onnx.TensorProto] = []
        self.known: dict[str, str] = {}

    def model(self) -> onnx.ModelProto:
        form = self.form
        table = self.stored("embed_tokens", self._numbers(form.vocabulary, form.hidden))
        x = self.add("Gather", table, "input_ids")
        mask, turns = ("", self._tables()) if form.is_grouped else (self._mask(), self._turns())
        for layer in range(form.layers):
            x = self.add("Add", x, self._attention(self._normalized(x), layer, mask, turns))
            x = self.add("Add", x, self._feed_forward(self._normalized(x)))
        self.product(self._normalized(x), form.vocabulary, into="logits")
        graph = helper.make_graph(self.nodes, "decoder", *self._ends(), self.arrays)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)

    def _ends(self) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
        form, whole = self.form, TensorProto.INT64

        def value(name: str, shape: list[Any], kind: int = TensorProto.FLOAT) -> Any:
            return helper.make_tensor_value_info(name, kind, shape)

        names = [f"{layer}.{name}" for layer in range(form.layers) for name in ("key", "value")]
        past = ["batch", form.shared_heads, "past", form.depth]
        present = ["batch", form.shared_heads, "past + length", form.depth]
        inputs = [
            value("input_ids", ["batch", "length"], whole),
            *(
                [
                    value("seqlens_k", ["batch"], TensorProto.INT32),
                    value("total_sequence_length", [], TensorProto.INT32),
                ]
                if form.is_grouped
                else [
                    value("attention_mask", ["batch", "past + length"], whole),
                    value("position_ids", ["batch", "length"], whole),
                ]
            ),
            *(value(f"past_key_values.{name}", past) for name in names),
        ]
        outputs = [value("logits", ["batch", "length", form.vocabulary])]
        return inputs, [*outputs, *(value(f"present.{name}", present) for name in names)]

    def add(self, op: str, *inputs: str, into: str | None = None, **attributes: Any) -> str:
        """Adds a node of one output, and returns the output's name."""
        name = into or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def stored(self, name: str, array: Any) -> str:
        """The name of a stored array."""
        self.arrays.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def number(self, value: Any) -> str:
        """The name of a small stored array, one for all that are equal."""
        array = np.asarray(value)
        key = f"{array.dtype}{array.tolist()}"
        if key not in self.known:
            self.known[key] = self.stored(f"number_{len(self.known)}", array)
        return self.known[key]

    def _numbers(self, *shape: int) -> np.ndarray:
        return self.random.standard_normal(shape, dtype=np.float32) * np.float32(0.04)

    def product(
        self, x: str, columns: int, rows: int | None = None, into: str | None = None
    ) -> str:
        """``x`` times a matrix of random weights, stored as the form says."""
        depth = rows or self.form.hidden
        name = f"weight_{len(self.arrays)}"
        if self.form.storage == "float32":
            return self.add(
                "MatMul", x, self.stored(name, self._numbers(depth, columns)), into=into
            )
        if self.form.storage == "int8":
            return self._integer_product(x, name, depth, columns, into)
        blocks = depth // _BLOCK
        packed = self.random.integers(0, 256, (columns, blocks, _BLOCK // 2), dtype=np.uint8)
        scales = np.full(columns * blocks, 0.01, np.float32)
        sizes: Mapping[str, int] = {
            **{"K": depth, "N": columns, "bits": 4, "block_size": _BLOCK},
            "accuracy_level": self.form.accuracy_level,
        }
        arrays = self.stored(name, packed), self.stored(f"{name}_scales", scales)
        return self.add("MatMulNBits", x, *arrays, into=into, domain="com.microsoft", **sizes)

    def _integer_product(
        self, x: str, name: str, depth: int, columns: int, into: str | None
    ) -> str:
        weights = self.random.integers(-127, 128, (depth, columns), dtype=np.int8)
        made = [f"{x}_{name}_{part}" for part in ("quantized", "scale", "zero_point")]
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], made))
        quantized, scale, zero = made
        sums = self.add("MatMulInteger", quantized, self.stored(name, weights), zero)
        scales = self.add("Mul", scale, self.number(np.float32(0.0005)))
        return self.add("Mul", self.add("Cast", sums, to=TensorProto.FLOAT), scales, into=into)

    def _normalized(self, x: str) -> str:
        """Root mean square normalisation."""
        square = self.add("Pow", x, self.number(np.float32(2)))
        mean = self.add("ReduceMean", square, self.number(np.array([-1])), keepdims=1)
        root = self.add("Sqrt", self.add("Add", mean, self.number(np.float32(1e-5))))
        normal = self.add("Div", x, root)
        weights = 1 + self._numbers(self.form.hidden)
        return self.add("Mul", normal, self.stored(f"norm_{len(self.arrays)}", weights))

    def _mask(self) -> str:
        """What is added to scores: nothing for keys that a row sees, else the least number."""
        shape = self.add("Shape", "attention_mask")
        total = self.add("Gather", shape, self.number(np.int64(1)))
        zero, one = self.number(np.int64(0)), self.number(np.int64(1))
        keys = self.add("Range", zero, total, one)
        rows = self.add("Unsqueeze", "position_ids", self.number(np.array([1, 3])))
        causal = self.add("LessOrEqual", keys, rows)
        whole = self.add("Cast", "attention_mask", to=TensorProto.BOOL)
        seen = self.add("And", causal, self.add("Unsqueeze", whole, self.number(np.array([1, 2]))))
        return self.add("Where", seen, self.number(np.float32(0)), self.number(np.float32(_LEAST)))

    def _turns(self) -> tuple[str, str]:
        """Cosines and sines of the rotary embedding, of each position."""
        angles = np.tile(self._angles(), 2)
        found = []
        for name, function in (("cos", np.cos), ("sin", np.sin)):
            table = self.stored(f"{name}_table", function(angles).astype(np.float32))
            row = self.add("Gather", table, "position_ids")
            found.append(self.add("Unsqueeze", row, self.number(np.array([1]))))
        return found[0], found[1]

    def _tables(self) -> tuple[str, str]:
        """Cosines and sines of all positions, once for both halves of a head."""
        angles = self._angles()
        names = ("cos_cache", np.cos), ("sin_cache", np.sin)
        cosines, sines = (self.stored(n, f(angles).astype(np.float32)) for n, f in names)
        return cosines, sines

    def _angles(self) -> np.ndarray:
        """Of each position and each pair of a head's numbers."""
        steps = 1e4 ** (-np.arange(0, self.form.depth, 2) / self.form.depth)
        return np.outer(np.arange(self.form.positions), steps)

    def _heads(self, x: str, heads: int) -> str:
        flat = self.product(x, heads * self.form.depth)
        shape = self.number(np.array([0, 0, heads, self.form.depth]))
        return self.add("Transpose", self.add("Reshape", flat, shape), perm=[0, 2, 1, 3])

    def _turned(self, x: str, turns: tuple[str, str]) -> str:
        half, end, axis = self.form.depth // 2, self.form.depth, self.number(np.array([3]))
        at = [self.number(np.array([n])) for n in (0, half, end)]
        first, last = (self.add("Slice", x, at[n], at[n + 1], axis) for n in (0, 1))
        other = self.add("Concat", self.add("Neg", last), first, axis=-1)
        cosines, sines = turns
        return self.add("Add", self.add("Mul", x, cosines), self.add("Mul", other, sines))

    def _repeated(self, x: str) -> str:
        """Keys or values of shared heads, once for each head that takes them."""
        form = self.form
        each = form.heads // form.shared_heads
        if each == 1:
            return x
        apart = self.add("Unsqueeze", x, self.number(np.array([2])))
        repeats = self.number(np.array([1, 1, each, 1, 1]))
        many = self.add("Expand", apart, repeats)
        return self.add("Reshape", many, self.number(np.array([0, form.heads, -1, form.depth])))

    def _attention(self, x: str, layer: int, mask: str, turns: tuple[str, str]) -> str:
        if self.form.is_grouped:
            return self._grouped_attention(x, layer, turns)
        form = self.form
        query = self._turned(self._heads(x, form.heads), turns)
        key = self._turned(self._heads(x, form.shared_heads), turns)
        value = self._heads(x, form.shared_heads)
        state = []
        for name, new in (("key", key), ("value", value)):
            past, present = f"past_key_values.{layer}.{name}", f"present.{layer}.{name}"
            state.append(self._repeated(self.add("Concat", past, new, into=present, axis=2)))
        keys = self.add("Transpose", state[0], perm=[0, 1, 3, 2])
        scores = self.add("MatMul", query, keys)
        scaled = self.add("Mul", scores, self.number(np.float32(form.depth**-0.5)))
        shares = self.add("Softmax", self.add("Add", scaled, mask), axis=-1)
        taken = self.add("Transpose", self.add("MatMul", shares, state[1]), perm=[0, 2, 1, 3])
        width = form.heads * form.depth
        joined = self.add("Reshape", taken, self.number(np.array([0, 0, width])))
        return self.product(joined, form.hidden, width)

    def _grouped_attention(self, x: str, layer: int, tables: tuple[str, str]) -> str:
        form, shared = self.form, self.form.shared_heads
        flat = [self.product(x, heads * form.depth) for heads in (form.heads, shared, shared)]
        past = [f"past_key_values.{layer}.{name}" for name in ("key", "value")]
        present = [f"present.{layer}.{name}" for name in ("key", "value")]
        places = ["seqlens_k", "total_sequence_length"]
        taken = f"attended_{layer}"
        attributes = {"num_heads": form.heads, "kv_num_heads": shared, "do_rotary": 1}
        made = helper.make_node(
            "GroupQueryAttention",
            [*flat, *past, *places, *tables],
            [taken, *present],
            domain="com.microsoft",
            **attributes,
        )
        self.nodes.append(made)
        return self.product(taken, form.hidden, form.heads * form.depth)

    def _feed_forward(self, x: str) -> str:
        form = self.form
        gate, up = (self.product(x, form.intermediate) for _ in range(2))
        swish = self.add("Mul", gate, self.add("Sigmoid", gate))
        return self.product(self.add("Mul", swish, up), form.hidden, form.intermediate)
