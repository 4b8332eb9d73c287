<<<<<<< HEAD
"""Small language models with keys and values of earlier tokens as inputs and outputs, and texts
that ONNX Runtime makes with them.
"""

from collections.abc import Sequence
from pathlib import Path
=======
"""Small language models with keys and values of earlier tokens, and how ONNX Runtime runs them."""

>>>>>>> fca7100e12cabb6c33ddfbd2910848d10385975c
from typing import Any

import numpy as np
import onnx
<<<<<<< HEAD
import onnxruntime
from onnx import TensorProto, helper
from small_models import model, node, rand, value
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

INT64 = TensorProto.INT64
HEADS, DEPTH = 2, 4
WIDTH = HEADS * DEPTH


def causal_lm(
    vocabulary: int = 320,
    *,
    has_mask: bool = True,
    has_positions: bool = True,
    has_state: bool = True,
    context: int = 64,
    seed: int = 0,
) -> onnx.ModelProto:
    """One layer of attention with learned positions; the logits are those of the embeddings."""
    nodes = [
        node("Shape", ["input_ids"], ["shape"]),
        node("Gather", ["shape", "one"], ["new"]),
        node("Gather", ["table", "input_ids"], ["embedded"]),
        *(_positions() if not has_positions else []),
        node("Gather", ["places", "position_ids"], ["placed"]),
        node("Add", ["embedded", "placed"], ["x"]),
        *_heads(has_state),
        node("MatMul", ["q", "k_turned"], ["scores"]),
        node("Mul", ["scores", "scale"], ["scaled"]),
        *_causal(has_mask),
        node("Softmax", ["masked"], ["shares"], axis=-1),
        node("MatMul", ["shares", "values"], ["taken"]),
        node("Transpose", ["taken"], ["turned"], perm=[0, 2, 1, 3]),
        node("Reshape", ["turned", "rows"], ["joined"]),
        node("MatMul", ["joined", "wo"], ["mixed"]),
        node("Add", ["x", "mixed"], ["z"]),
        node("MatMul", ["z", "unembed"], ["logits"]),
    ]
    table = rand(vocabulary, WIDTH, seed=seed)
    weights: dict[str, Any] = {
        "table": table,
        "unembed": rand(vocabulary, WIDTH, seed=seed + 1).T.copy(),
        "places": rand(context, WIDTH, seed=seed + 2),
        **{f"w{n}": rand(WIDTH, WIDTH, seed=seed + 3 + k) for k, n in enumerate("qkvo")},
        "scale": np.float32(DEPTH**-0.5),
        "one": np.int64(1),
        "two": np.int64(2),
        **({} if has_positions else {"row": np.array([0])}),
        "zero": np.int64(0),
        "split": np.array([0, 0, HEADS, DEPTH]),
        "rows": np.array([0, 0, WIDTH]),
        "least": np.float32(-1e9),
        **({"axes": np.array([1, 2])} if has_mask else {}),
        "columns": np.array([1]),
    }
    return model(nodes, *_ends(vocabulary, has_mask, has_positions, has_state), **weights)


def _ends(vocabulary: int, has_mask: bool, has_positions: bool, has_state: bool) -> Any:
    past, present = (
        ["B", HEADS, "past", DEPTH],
        ["B", HEADS, "past + new", DEPTH],
    )
    state = ("key", "value") if has_state else ()
    total = "past + new" if has_state else "S"
    inputs = [
        value("input_ids", ["B", "S"], INT64),
        *([value("attention_mask", ["B", total], INT64)] if has_mask else []),
        *([value("position_ids", ["B", "S"], INT64)] if has_positions else []),
        *(value(f"past_key_values.0.{n}", past) for n in state),
    ]
    outputs = [value("logits", ["B", "S", vocabulary])]
    return inputs, [*outputs, *(value(f"present.0.{n}", present) for n in state)]


def _positions() -> list[onnx.NodeProto]:
    return [
        node("Shape", ["past_key_values.0.key"], ["past_shape"]),
        node("Gather", ["past_shape", "two"], ["begin"]),
        node("Add", ["begin", "new"], ["end"]),
        node("Range", ["begin", "end", "one"], ["range"]),
        node("Unsqueeze", ["range", "row"], ["position_ids"]),
    ]


def _heads(has_state: bool) -> list[onnx.NodeProto]:
    nodes = []
    for name, full in (("q", "q"), ("k", "keys"), ("v", "values")):
        own = f"{name}_new" if has_state and name != "q" else full
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}_flat"]),
            node("Reshape", [f"{name}_flat", "split"], [f"{name}_split"]),
            node("Transpose", [f"{name}_split"], [own], perm=[0, 2, 1, 3]),
        ]
    if has_state:
        nodes += [
            node("Concat", ["past_key_values.0.key", "k_new"], ["present.0.key"], axis=2),
            node("Concat", ["past_key_values.0.value", "v_new"], ["present.0.value"], axis=2),
            node("Identity", ["present.0.key"], ["keys"]),
            node("Identity", ["present.0.value"], ["values"]),
        ]
    return [*nodes, node("Transpose", ["keys"], ["k_turned"], perm=[0, 1, 3, 2])]


def _causal(has_mask: bool) -> list[onnx.NodeProto]:
    """Each row sees the keys up to its own, and of these what is no padding."""
    nodes = [
        node("Shape", ["keys"], ["keys_shape"]),
        node("Gather", ["keys_shape", "two"], ["total"]),
        node("Sub", ["total", "new"], ["first"]),
        node("Range", ["zero", "total", "one"], ["column"]),
        node("Range", ["first", "total", "one"], ["line"]),
        node("Unsqueeze", ["line", "columns"], ["lines"]),
        node("LessOrEqual", ["column", "lines"], ["seen"]),
        node("Where", ["seen", "scaled", "least"], ["past_only"]),
    ]
    if not has_mask:
        return [*nodes, node("Identity", ["past_only"], ["masked"])]
    return [
        *nodes,
        node("Cast", ["attention_mask"], ["read"], to=TensorProto.BOOL),
        node("Unsqueeze", ["read", "axes"], ["read_by_all"]),
        node("Where", ["read_by_all", "past_only", "least"], ["masked"]),
    ]


def encoder_decoder(vocabulary: int = 320) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """An encoder of a waveform, and a merged decoder: the first run takes the branch that computes
    the encoder's keys, the others one that returns none of them.
    """
    encoder = model(
        [
            node("Reshape", ["input_values", "frames"], ["framed"]),
            node("MatMul", ["framed", "w"], ["last_hidden_state"]),
        ],
        [value("input_values", ["B", "samples"])],
        [value("last_hidden_state", ["B", "T", WIDTH])],
        frames=np.array([0, -1, 160]),
        w=rand(160, WIDTH, seed=21) * 0.3,
    )
    shapes = {"decoder.key": ["B", 1, "past", WIDTH], "encoder.key": ["B", 1, "T_out", WIDTH]}
    grown = {**shapes, "decoder.key": ["B", 1, "past + 1", WIDTH]}
    inputs = [
        value("input_ids", ["B", "S"], INT64),
        value("encoder_hidden_states", ["B", "T", WIDTH]),
        *(value(f"past_key_values.0.{name}", shape) for name, shape in shapes.items()),
        value("use_cache_branch", [1], TensorProto.BOOL),
    ]
    outputs = [
        value("logits", ["B", "S", vocabulary]),
        *(value(f"present.0.{name}", shape) for name, shape in grown.items()),
    ]
    branches = {"then_branch": _branch(is_first=False), "else_branch": _branch(is_first=True)}
    names = [one.name for one in outputs]
    decoder = model(
        [node("If", ["use_cache_branch"], names, **branches)],
        inputs,
        outputs,
        table=rand(vocabulary, WIDTH, seed=22),
        unembed=rand(WIDTH, vocabulary, seed=23),
        wk=rand(WIDTH, WIDTH, seed=24),
        one=np.array([1]),
    )
    return encoder, decoder


def _branch(is_first: bool) -> onnx.GraphProto:
    p = "first_" if is_first else "next_"
    computed = [
        node("MatMul", ["encoder_hidden_states", "wk"], [p + "flat"]),
        node("Unsqueeze", [p + "flat", "one"], [p + "encoder"]),
        node("Identity", [p + "encoder"], [p + "used"]),
    ]
    # What exporters return for keys that stay what they are.
    kept = [
        node("Identity", ["past_key_values.0.encoder.key"], [p + "used"]),
        node(
            "ConstantOfShape",
            [p + "none"],
            [p + "encoder"],
        ),
    ]
    constants = (
        [] if is_first else [node("Constant", [], [p + "none"], value_ints=[0, 1, 1, WIDTH])]
    )
    nodes = [
        *constants,
        node("Gather", ["table", "input_ids"], [p + "embedded"]),
        node("Unsqueeze", [p + "embedded", "one"], [p + "new"]),
        node("Concat", ["past_key_values.0.decoder.key", p + "new"], [p + "decoder"], axis=2),
        *(computed if is_first else kept),
        node("ReduceMean", [p + "decoder"], [p + "said"], axes=[1, 2], keepdims=0),
        node("ReduceMean", [p + "used"], [p + "heard"], axes=[1, 2], keepdims=0),
        node("Add", [p + "said", p + "heard"], [p + "both"]),
        node("Unsqueeze", [p + "both", "one"], [p + "row"]),
        node("Add", [p + "embedded", p + "row"], [p + "x"]),
        node("MatMul", [p + "x", "unembed"], [p + "logits"]),
    ]
    outputs = [value(p + name, None) for name in ("logits", "decoder", "encoder")]
    return helper.make_graph(nodes, p + "branch", [], outputs)


def greedy(
    path: Path, prompt: Sequence[int], count: int, ends: Sequence[int] = (), **fixed: np.ndarray
) -> list[int]:
    """The tokens that ONNX Runtime gives behind a prompt, the whole cache fed by hand."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    known = {one.name: one for one in session.get_inputs()}
    past = {
        name: np.zeros([n if isinstance(n, int) else int(n == "B") for n in one.shape], np.float32)
        for name, one in known.items()
        if name.startswith("past")
    }
    read, tokens, length = list(prompt), [], 0
    for step in range(count):
        total = length + len(read)
        feed = {
            "input_ids": np.array([read]),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(length, total)[None],
            "use_cache_branch": np.array([step > 0]),
            **fixed,
            **past,
        }
        found = session.run(None, {name: feed[name] for name in known})
        for name, array in zip(names, found, strict=True):
            if name.startswith("present") and array.size:
                past[name.replace("present", "past_key_values")] = array
        tokens.append(int(found[0][0, -1].argmax()))
        if tokens[-1] in ends:
            break
        read, length = tokens[-1:], total
    return tokens


def byte_tokenizer(folder: Path, *more: str, specials: Sequence[str] = ("</s>",)) -> Path:
    """A tokenizer.json with a token for each byte, then ``more`` and the special ones."""
    bytes_ = sorted(ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate(bytes_)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_tokens(list(more))
    tokenizer.add_special_tokens(list(specials))
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path
=======
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
>>>>>>> fca7100e12cabb6c33ddfbd2910848d10385975c
