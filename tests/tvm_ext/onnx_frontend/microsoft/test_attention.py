"""Attention operators of com.microsoft beside ONNX Runtime: causal, with earlier keys, rotary."""

from typing import Any

import numpy as np
import onnx
import pytest
from one_model import in_one_model, run_model
from onnx import TensorProto, helper
from operator_models import by_runtime
from unoptimised import HOST

import tvm_ext

BATCH, HEADS, SHARED, DEPTH, NEW, PAST = 2, 4, 2, 16, 3, 5
LONGEST = 16
Arrays = dict[str, "np.ndarray | None"]


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype("float32")


def angles(half: int = DEPTH // 2) -> dict[str, np.ndarray]:
    """Cosine and sine for every position, as language models store them."""
    position = np.arange(LONGEST)[:, None] * 100.0 ** -(np.arange(half) / half)
    return {"cos": np.cos(position).astype("float32"), "sin": np.sin(position).astype("float32")}


def check(
    operator: str, arrays: Arrays, outputs: int, compared: int = 3, **attributes: Any
) -> None:
    """The operator in a model of its own, its first results beside ONNX Runtime's."""
    feeds = {name: array for name, array in arrays.items() if array is not None}
    names = [name if array is not None else "" for name, array in arrays.items()]
    results = [f"y{place}" for place in range(outputs)]
    domain = "" if operator == "SimplifiedLayerNormalization" else "com.microsoft"
    node = helper.make_node(operator, names, results, "tested", domain=domain, **attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
        if n not in ("cos", "sin")
    ]
    stored = [onnx.numpy_helper.from_array(feeds.pop(n), n) for n in ("cos", "sin") if n in feeds]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results]
    graph = helper.make_graph([node], "small", inputs, infos, stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    wanted = by_runtime(model, feeds)
    found = run_model(model, feeds, "O0")
    for name, array in list(zip(results, wanted, strict=True))[:compared]:
        assert found[name].shape == array.shape
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(("past", "causal"), [(False, 1), (True, 0), (True, 1)])
def test_multi_head_attention(past: bool, causal: int) -> None:
    rows = {name: drawn(BATCH, NEW, HEADS * DEPTH, seed=i) for i, name in enumerate("qkv")}
    keys = {
        name: drawn(BATCH, HEADS, PAST, DEPTH, seed=i) if past else None
        for i, name in enumerate(("past key", "past value"))
    }
    none = dict.fromkeys(("bias", "mask", "added"))
    arrays = {**rows, **none, **keys}
    check("MultiHeadAttention", arrays, 3, num_heads=HEADS, unidirectional=causal)


@in_one_model
@pytest.mark.parametrize("new", [1, 2, 7])
@pytest.mark.parametrize("past", [False, True])
def test_causal_attention_to_more_or_fewer_keys_than_queries(new: int, past: bool) -> None:
    """The last query sees all keys, each of the others those before its own position."""
    arrays: Arrays = {
        "q": drawn(BATCH, NEW, HEADS * DEPTH),
        **{name: drawn(BATCH, new, HEADS * DEPTH, seed=i) for i, name in enumerate("kv")},
        **dict.fromkeys(("bias", "mask", "added")),
    }
    if past:
        arrays |= {name: drawn(BATCH, HEADS, PAST, DEPTH) for name in ("past key", "past value")}
    outputs = 3 if past else 1
    check("MultiHeadAttention", arrays, outputs, num_heads=HEADS, unidirectional=1)


@in_one_model
@pytest.mark.parametrize("past", [False, True])
def test_attention_of_generative_models(past: bool) -> None:
    arrays: Arrays = {
        "x": drawn(BATCH, NEW, 12),
        "w": drawn(12, 3 * HEADS * DEPTH),
        "b": drawn(3 * HEADS * DEPTH),
        "mask": None,
        "past": drawn(2, BATCH, HEADS, PAST, DEPTH) if past else None,
    }
    check("Attention", arrays, 2, num_heads=HEADS, unidirectional=1)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("limits", [[2, 3], [3, 2, 1, 0]], ids=["ends", "ends and starts"])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_lengths_in_place_of_a_mask(limits: list[int], causal: int) -> None:
    arrays: Arrays = {
        "x": drawn(BATCH, NEW, 12),
        "w": drawn(12, 3 * HEADS * DEPTH),
        "b": drawn(3 * HEADS * DEPTH),
        "limits": np.array(limits, "int32"),
    }
    check("Attention", arrays, 1, num_heads=HEADS, unidirectional=causal)


@pytest.mark.extended
def test_attention_with_lengths_of_sizes_with_different_names() -> None:
    """As ONNX Runtime's optimiser writes encoders of any batch."""
    node = helper.make_node(
        "Attention", ["x", "w", "b", "ends"], ["y"], domain="com.microsoft", num_heads=HEADS
    )
    width = 3 * HEADS * DEPTH
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", "length", 12]),
        helper.make_tensor_value_info("ends", TensorProto.INT32, ["batch"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    stored = [onnx.numpy_helper.from_array(drawn(12, width), "w")]
    stored.append(onnx.numpy_helper.from_array(drawn(width), "b"))
    graph = helper.make_graph([node], "small", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    compiled = tvm_ext.compile(proto, HOST, opt_level=0)
    for ends in ([2, 3], [1]):
        feeds = {"x": drawn(len(ends), NEW, 12), "ends": np.array(ends, "int32")}
        (wanted,) = by_runtime(proto, feeds)
        np.testing.assert_allclose(compiled.run(feeds)["y"], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(
    ("shape", "half", "attributes", "positions"),
    [
        ((BATCH, NEW, HEADS * DEPTH), DEPTH // 2, {}, [4]),
        ((BATCH, HEADS, NEW, DEPTH), DEPTH // 2, {"interleaved": 1}, [[4, 5, 6], [0, 1, 7]]),
        ((BATCH, NEW, HEADS * DEPTH), 2, {"num_heads": HEADS, "rotary_embedding_dim": 4}, [0]),
    ],
    ids=["rows", "interleaved heads", "a part of each head"],
)
def test_rotary_embedding(
    shape: tuple[int, ...], half: int, attributes: dict, positions: list
) -> None:
    arrays = {"x": drawn(*shape), "at": np.array(positions, "int64"), **angles(half)}
    check("RotaryEmbedding", arrays, 1, **attributes)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((BATCH, NEW, HEADS * 12), {"num_heads": HEADS}),
        ((BATCH, NEW, HEADS * 12), {"num_heads": HEADS, "mrope_layout": 1}),
        ((BATCH, HEADS, NEW, 12), {"mrope_layout": 1, "interleaved": 1}),
    ],
    ids=["sections", "in turns", "interleaved heads"],
)
def test_rotary_embedding_of_three_positions(
    shape: tuple[int, ...], attributes: dict[str, int]
) -> None:
    positions = np.arange(3 * BATCH * NEW).reshape(3, BATCH, NEW) % 8
    arrays = {"x": drawn(*shape), "at": positions, **angles(6)}
    check("MRotaryEmbedding", arrays, 1, mrope_section=[3, 2, 1], **attributes)


def grouped(past: int, lengths: list[int], rotary: bool, packed: bool = False) -> Arrays:
    """Inputs of GroupQueryAttention; ``lengths``: of earlier and new keys, by sequence."""
    batch = len(lengths)
    widths = [HEADS * DEPTH, SHARED * DEPTH, SHARED * DEPTH]
    rows: Arrays = {n: drawn(batch, NEW, w, seed=w) for n, w in zip("qkv", widths, strict=True)}
    if packed:
        rows = {"q": np.concatenate(list(rows.values()), axis=2), "k": None, "v": None}
    keys = [drawn(batch, SHARED, past, DEPTH, seed=i) if past else None for i in (1, 2)]
    return {
        **rows,
        "past key": keys[0],
        "past value": keys[1],
        "lengths": np.array(lengths, "int32") - 1,
        "total": np.array(max(lengths), "int32"),
        **(angles() if rotary else {}),
    }


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize(
    ("arrays", "attributes"),
    [
        (grouped(0, [NEW, NEW], rotary=True), {}),
        (grouped(0, [NEW, NEW], rotary=False, packed=True), {"scale": 0.2, "softcap": 5.0}),
        (
            grouped(PAST, [PAST + NEW], rotary=True),
            {"local_window_size": 2, "rotary_interleaved": 1},
        ),
        (
            grouped(PAST, [PAST + NEW], rotary=True)
            | {"positions": None, "bias": None, "sink": drawn(HEADS)},
            {"local_window_size": 4},
        ),
        (grouped(0, [NEW, NEW], rotary=False), {"smooth_softmax": 1, "softcap": 5.0}),
    ],
    ids=["prompt", "packed, scaled and capped", "later in a window", "sink", "smooth"],
)
def test_group_query_attention(arrays: Arrays, attributes: dict[str, Any]) -> None:
    rotary = int("cos" in arrays)
    given = {"num_heads": HEADS, "kv_num_heads": SHARED, "do_rotary": rotary, **attributes}
    check("GroupQueryAttention", arrays, 3, **given)


@pytest.mark.extended
def test_shorter_sequences_go_on_where_they_ended() -> None:
    """One new position for each; only its result is looked at."""
    arrays = grouped(PAST, [PAST + 1, PAST - 2], rotary=True)
    for name in "qkv":
        arrays[name] = arrays[name][:, :1]
    given = {"num_heads": HEADS, "kv_num_heads": SHARED, "do_rotary": 1}
    check("GroupQueryAttention", arrays, 3, compared=1, **given)


@pytest.mark.slow
def test_symbolic_sizes() -> None:
    """One program for a prompt and for the positions after it, as language models run."""
    model = grouped_model(["b", "s"], ["b", SHARED, "p", DEPTH])
    compiled = tvm_ext.compile(model, HOST)
    for past, new in ((0, 4), (9, 1)):
        feeds = {
            "q": drawn(2, new, HEADS * DEPTH),
            "k": drawn(2, new, SHARED * DEPTH),
            "v": drawn(2, new, SHARED * DEPTH, seed=1),
            "past key": drawn(2, SHARED, past, DEPTH),
            "past value": drawn(2, SHARED, past, DEPTH, seed=1),
            "lengths": np.full(2, past + new - 1, "int32"),
            "total": np.array(past + new, "int32"),
        }
        found = compiled.run(feeds)
        for name, array in zip(("y0", "y1", "y2"), by_runtime(model, feeds), strict=True):
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def grouped_model(rows: list, keys: list) -> onnx.ModelProto:
    """GroupQueryAttention with rotary embeddings; ``rows``: batch and positions."""
    info = helper.make_tensor_value_info
    widths = {"q": HEADS * DEPTH, "k": SHARED * DEPTH, "v": SHARED * DEPTH}
    inputs = [info(name, TensorProto.FLOAT, [*rows, width]) for name, width in widths.items()]
    inputs += [info(name, TensorProto.FLOAT, keys) for name in ("past key", "past value")]
    inputs += [info("lengths", TensorProto.INT32, rows[:1]), info("total", TensorProto.INT32, [])]
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in angles().items()]
    names = [*(value.name for value in inputs), "cos", "sin"]
    given = {"num_heads": HEADS, "kv_num_heads": SHARED, "do_rotary": 1}
    results = ["y0", "y1", "y2"]
    node = helper.make_node("GroupQueryAttention", names, results, domain="com.microsoft", **given)
    outputs = [info(name, TensorProto.FLOAT, None) for name in results]
    graph = helper.make_graph([node], "decoder", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_simplified_layer_normalization() -> None:
    arrays = {"x": drawn(2, 3, 16), "scale": drawn(16)}
    check("SimplifiedLayerNormalization", arrays, 1, epsilon=1e-3)
