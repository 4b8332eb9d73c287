"""Small language models with keys and values of earlier tokens, and how ONNX Runtime runs them."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

HEADS, SIZE, VOCABULARY = 2, 8, 11
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL
value, node = helper.make_tensor_value_info, helper.make_node

_DRAW = np.random.default_rng(0)
_WIDTH = HEADS * SIZE
# A copy of each: models of one kind are the same in every test.
_WEIGHTS = {
    "table": _DRAW.standard_normal((VOCABULARY, _WIDTH)).astype("float32"),
    **{n: _DRAW.standard_normal((_WIDTH, _WIDTH)).astype("float32") / 4 for n in "qkvo"},
    "head": _DRAW.standard_normal((_WIDTH, VOCABULARY)).astype("float32"),
    "apart": np.array([0, 0, HEADS, SIZE]),
    "together": np.array([0, 0, _WIDTH]),
    "scale": np.array(SIZE**-0.5, "float32"),
    "last": np.array([1, 2]),
    "one": np.array(1.0, "float32"),
    "zero": np.array(0),
    "step": np.array(1),
    "lowest": np.array(-1e9, "float32"),
}


def _heads(name: str) -> list[onnx.NodeProto]:
    return [
        node("MatMul", ["x", name], [f"{name}_flat"]),
        node("Reshape", [f"{name}_flat", "apart"], [f"{name}_apart"]),
        node("Transpose", [f"{name}_apart"], [f"{name}_heads"], perm=[0, 2, 1, 3]),
    ]


def _rows_of(name: str, past: str, present: str, appends: bool) -> onnx.NodeProto:
    if appends:
        return node("Concat", [past, f"{name}_heads"], [present], f"append_{name}", axis=2)
    return node("Identity", [f"{name}_heads"], [present])


def _layer(past: dict[str, str], present: dict[str, str], appends: bool = True) -> list[Any]:
    """From token numbers to logits."""
    return [
        node("Gather", ["table", "input_ids"], ["x"]),
        *(one for name in "qkv" for one in _heads(name)),
        *(_rows_of(name, past[name], present[name], appends) for name in "kv"),
        node("Transpose", [present["k"]], ["columns"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q_heads", "columns"], ["products"]),
        node("Mul", ["products", "scale"], ["scores"]),
        node("Cast", ["attention_mask"], ["seen"], to=TensorProto.FLOAT),
        node("Sub", ["one", "seen"], ["hidden"]),
        node("Mul", ["hidden", "lowest"], ["flat_mask"]),
        # Gathered for each key, as exporters do it: the mask is surely as long as the keys.
        node("Shape", [present["k"]], ["keys"], start=2, end=3),
        node("Squeeze", ["keys"], ["count"]),
        node("Range", ["zero", "count", "step"], ["places"]),
        node("Gather", ["flat_mask", "places"], ["key_mask"], axis=1),
        node("Unsqueeze", ["key_mask", "last"], ["mask"]),
        node("Add", ["scores", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["weights"], axis=-1),
        node("MatMul", ["weights", present["v"]], ["mixed"]),
        node("Transpose", ["mixed"], ["mixed_apart"], perm=[0, 2, 1, 3]),
        node("Reshape", ["mixed_apart", "together"], ["mixed_flat"]),
        node("MatMul", ["mixed_flat", "o"], ["projected"]),
        node("Add", ["x", "projected"], ["summed"]),
        node("MatMul", ["summed", "head"], ["logits"], "head"),
    ]


_PAST = {"k": "past_key_values.0.key", "v": "past_key_values.0.value"}
_PRESENT = {"k": "present.0.key", "v": "present.0.value"}


def _values() -> tuple[list[Any], list[Any]]:
    past = ["batch", HEADS, "past", SIZE]
    present = ["batch", HEADS, "past + length", SIZE]
    inputs = [
        value("input_ids", INT64, ["batch", "length"]),
        value("attention_mask", INT64, ["batch", "past + length"]),
        *(value(name, TensorProto.FLOAT, past) for name in _PAST.values()),
    ]
    outputs = [
        value("logits", TensorProto.FLOAT, ["batch", "length", VOCABULARY]),
        *(value(name, TensorProto.FLOAT, present) for name in _PRESENT.values()),
    ]
    return inputs, outputs


def _model(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> onnx.ModelProto:
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in _WEIGHTS.items()]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights)
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9)


def decoder() -> onnx.ModelProto:
    """One layer, whose attention reads the concatenation of the past and new rows."""
    return _model(_layer(_PAST, _PRESENT), *_values())


def decoder_that_sums_its_keys() -> onnx.ModelProto:
    """The same, whose keys are also read by something else than attention."""
    inputs, outputs = _values()
    nodes = [
        *_layer(_PAST, _PRESENT),
        node("ReduceSum", [_PRESENT["k"]], ["sum"], keepdims=0),
    ]
    return _model(nodes, inputs, [*outputs, value("sum", TensorProto.FLOAT, [])])


def decoder_that_reads_its_past() -> onnx.ModelProto:
    """The same, whose past is read as it is beside the concatenation."""
    inputs, outputs = _values()
    nodes = [*_layer(_PAST, _PRESENT), node("ReduceSum", [_PAST["k"]], ["sum"], keepdims=0)]
    return _model(nodes, inputs, [*outputs, value("sum", TensorProto.FLOAT, [])])


def merged_decoder() -> onnx.ModelProto:
    """The same with a branch for the first tokens, which reads no past."""
    inputs, outputs = _values()
    branches = {}
    for name, appends in (("then_branch", True), ("else_branch", False)):
        inner = {key: f"{name}_{key}" for key in "kv"}
        nodes = _layer(_PAST, inner, appends)
        for one in nodes:
            one.output[:] = [f"{name}_{o}" if o == "logits" else o for o in one.output]
        results = [
            helper.make_empty_tensor_value_info(n) for n in (f"{name}_logits", *inner.values())
        ]
        branches[name] = helper.make_graph(nodes, name, [], results)
    choice = node("If", ["use_cache_branch"], ["logits", *_PRESENT.values()], **branches)
    return _model([choice], [*inputs, value("use_cache_branch", BOOL, [])], outputs)


def tokens(length: int, held: int, batch: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
    """The inputs of a run of so many new tokens behind those that are held."""
    draw = np.random.default_rng(100 * seed + held)
    return {
        "input_ids": draw.integers(0, VOCABULARY, (batch, length)),
        "attention_mask": np.ones((batch, held + length), "int64"),
    }


class Reference:
    """ONNX Runtime with the outputs of a run as the inputs of the next."""

    def __init__(self, model: onnx.ModelProto, state: dict[str, str], batch: int = 1) -> None:
        self._session = ort.InferenceSession(model.SerializeToString())
        self._names = [one.name for one in self._session.get_outputs()]
        self.outputs = state
        self.state = {
            one.name: np.zeros(
                [n if isinstance(n, int) else {"batch": batch}.get(n, 0) for n in one.shape],
                "float32",
            )
            for one in self._session.get_inputs()
            if one.name in state
        }

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs that are no state."""
        results = self._session.run(None, {**inputs, **self.state})
        named = dict(zip(self._names, results, strict=True))
        self.state = {name: named.pop(output) for name, output in self.outputs.items()}
        return named


STATE = dict(zip(_PAST.values(), _PRESENT.values(), strict=True))
"""The output that each state of these models is, by its input."""
