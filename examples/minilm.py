"""Writes the graph of all-MiniLM-L6-v2 in ONNX around its trained weights: no torch is needed.

A BERT encoder of six layers. Batch and length are dynamic. The sentence's vector is the mean of
its tokens' vectors, of length 1, as the authors of the model compute it.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS = 12
EPSILON = 1e-12


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The float32 tensors of a file in the safetensors format, by name."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    found = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if entry.get("dtype") == "F32":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            found[name] = np.frombuffer(data[begin:end], "<f4").reshape(entry["shape"])
    return found


class _Encoder:
    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def constant(self, name: str, values: np.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def integers(self, name: str, *values: int) -> str:
        return self.constant(name, np.array(values, "int64"))

    def node(self, operator: str, *inputs: str, **attributes: object) -> str:
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def linear(self, x: str, name: str) -> str:
        weight = self.constant(f"{name}.weight", self.weights[f"{name}.weight"].T)
        product = self.node("MatMul", x, weight)
        return self.node(
            "Add", product, self.constant(f"{name}.bias", self.weights[f"{name}.bias"])
        )

    def normalised(self, x: str, name: str) -> str:
        scale = self.constant(f"{name}.weight", self.weights[f"{name}.weight"])
        bias = self.constant(f"{name}.bias", self.weights[f"{name}.bias"])
        return self.node("LayerNormalization", x, scale, bias, epsilon=EPSILON)

    def embeddings(self) -> str:
        """Vectors of words and places, [batch, length, hidden]; all tokens are of one segment."""
        tables = {
            kind: self.constant(kind, self.weights[f"embeddings.{kind}_embeddings.weight"])
            for kind in ("word", "position")
        }
        words = self.node("Gather", tables["word"], "input_ids")
        length = self.node("Shape", "input_ids", start=1, end=2)
        axis = self.integers("axis_0", 0)
        places = self.node("Slice", tables["position"], axis, length, axis)
        segment = self.constant(
            "segment", self.weights["embeddings.token_type_embeddings.weight"][0]
        )
        summed = self.node("Add", self.node("Add", words, places), segment)
        return self.normalised(summed, "embeddings.LayerNorm")

    def attention(self, x: str, name: str, mask: str) -> str:
        """Each token's mean of all tokens of its sentence, weighed by how well they fit it."""
        query, key, value = (
            self.node(
                "Transpose",
                self.node("Reshape", self.linear(x, f"{name}.self.{part}"), "by_heads"),
                perm=[0, 2, 3, 1] if part == "key" else [0, 2, 1, 3],
            )
            for part in ("query", "key", "value")
        )
        scores = self.node("Mul", self.node("MatMul", query, key), "scale")
        weights = self.node("Softmax", self.node("Add", scores, mask), axis=-1)
        mixed = self.node("Transpose", self.node("MatMul", weights, value), perm=[0, 2, 1, 3])
        joined = self.node("Reshape", mixed, "joined")
        return self.linear(joined, f"{name}.output.dense")

    def layer(self, x: str, name: str, mask: str) -> str:
        attended = self.node("Add", self.attention(x, f"{name}.attention", mask), x)
        x = self.normalised(attended, f"{name}.attention.output.LayerNorm")
        hidden = self.node("Gelu", self.linear(x, f"{name}.intermediate.dense"))
        widened = self.node("Add", self.linear(hidden, f"{name}.output.dense"), x)
        return self.normalised(widened, f"{name}.output.LayerNorm")

    def sentence(self, x: str, mask: str) -> None:
        """The mean of the vectors of the tokens that are no padding, scaled to length 1."""
        kept = self.node("Unsqueeze", mask, self.integers("axis_2", 2))
        axis = self.integers("axis_1", 1)
        total = self.node("ReduceSum", self.node("Mul", x, kept), axis, keepdims=0)
        mean = self.node("Div", total, self.node("ReduceSum", kept, axis, keepdims=0))
        self.nodes.append(helper.make_node("LpNormalization", [mean], ["vector"], axis=-1, p=2))


def build_minilm(weights: Path, path: Path) -> Path:
    """Writes the model with the weights of a safetensors file to ``path`` and returns the path.

    Inputs are ``input_ids`` and ``attention_mask``, int64[batch, length]; the output is ``vector``,
    float32[batch, 384].
    """
    encoder = _Encoder(read_safetensors(weights))
    hidden = encoder.weights["embeddings.word_embeddings.weight"].shape[1]
    encoder.integers("by_heads", 0, 0, HEADS, hidden // HEADS)
    encoder.integers("joined", 0, 0, hidden)
    encoder.constant("scale", np.array((hidden // HEADS) ** -0.5, "float32"))
    mask = encoder.node("Cast", "attention_mask", to=TensorProto.FLOAT)
    # 0 for tokens, and for padding a number that softmax makes 0 of.
    one, far = (encoder.constant(f"{value:g}", np.array(value, "float32")) for value in (1.0, -1e9))
    hiding = encoder.node("Mul", encoder.node("Sub", one, mask), far)
    hiding = encoder.node("Unsqueeze", hiding, encoder.integers("axes_1_2", 1, 2))
    x = encoder.embeddings()
    for number in range(6):
        x = encoder.layer(x, f"encoder.layer.{number}", hiding)
    encoder.sentence(x, mask)
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info("vector", TensorProto.FLOAT, ["batch", hidden])
    graph = helper.make_graph(encoder.nodes, "minilm", inputs, [output], encoder.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path
