"""Small language models with keys and values of earlier tokens as inputs and outputs, and texts
that ONNX Runtime makes with them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
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
