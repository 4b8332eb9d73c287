"""KeepStateInPlace: what is written and read in the buffer, and what is left alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from unoptimised import HOST, built

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.passes.attention_fusion import AttentionFusion
from tvm_ext.passes.keep_state_in_place import (
    CAPACITY,
    HELD,
    KeepStateInPlace,
    StateInPlace,
    append_rows,
)
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.spans import bindings_of

op = relax.op
BATCH, PAST, LENGTH = (tirx.Var(name, "int64") for name in ("batch", "past", "length"))
STATES = ((1, 1, 2), (2, 2, 2))


def tensor(name: str, length: Any) -> relax.Var:
    return relax.Var(name, relax.TensorType([BATCH, 2, length, 8], "float32"))


def module(body: Callable[..., list[relax.Expr]], past: Any = PAST) -> tvm.IRModule:
    """``main(q, past_k, past_v, k, v)``."""
    builder = relax.BlockBuilder()
    params = [
        *(tensor("q", LENGTH), tensor("past_k", past), tensor("past_v", past)),
        *(tensor("k", LENGTH), tensor("v", LENGTH)),
    ]
    with builder.function("main", params):
        with builder.dataflow():
            results = body(builder.emit, *params)
            outputs = [builder.emit_output(result) for result in results]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()


def appended(emit: Any, past: relax.Expr, rows: relax.Expr) -> relax.Expr:
    return emit(op.concat([past, rows], axis=2))


def attention(emit: Any, q: Any, past_k: Any, past_v: Any, k: Any, v: Any) -> list[relax.Expr]:
    keys, values = appended(emit, past_k, k), appended(emit, past_v, v)
    scores = emit(op.matmul(q, emit(op.permute_dims(keys, [0, 1, 3, 2]))))
    return [emit(op.matmul(emit(op.nn.softmax(scores, -1)), values)), keys, values]


def also_summed(emit: Any, *params: Any) -> list[relax.Expr]:
    y, keys, values = attention(emit, *params)
    return [y, keys, values, emit(op.sum(keys))]


def kept(mod: tvm.IRModule, states: Any = STATES, machine: Any = HOST) -> tuple[Any, list[str]]:
    """The module after the pass, and why it left states alone."""
    with compiling_for(machine), recording() as decisions:
        fused = AttentionFusion()(mod)
        after = KeepStateInPlace(states=states)(fused)
        # A second run changes nothing.
        assert KeepStateInPlace(states=states)(after).same_as(after) or states == ()
        relax.analysis.well_formed(after)
    own = [one for one in decisions if one.pass_name == "KeepStateInPlace" and not one.applied]
    return after, [one.reason for one in own]


def operators(mod: tvm.IRModule) -> list[str]:
    return [operator_name(binding.value) for binding in bindings_of(mod["main"])]


def kernels(mod: tvm.IRModule) -> list[str]:
    return [str(variable.name_hint) for variable in mod.functions]


def test_attention_reads_the_buffers() -> None:
    after, refused = kept(module(attention))
    assert refused == []
    main = after["main"]
    names = [str(param.name) for param in main.params]
    assert names == ["q", "past_k", "past_v", "k", "v", HELD]
    for place in (1, 2):
        shape = main.params[place].ty.shape.values
        assert shape[2].name == CAPACITY
        assert shape[2].same_as(main.params[1].ty.shape.values[2])
    assert main.params[5].ty.shape.values[0].same_as(PAST)
    assert operators(after).count("relax.call_tir_inplace") == 2
    assert not any("first_rows" in name for name in kernels(after))
    assert "relax.concat" not in operators(after)
    assert isinstance(main.ret_ty, relax.TensorType)
    state = StateInPlace.of(after)
    assert state == StateInPlace([[1, 2], [2, 2]], [1, 2], [])


def test_what_is_no_attention_reads_a_slice() -> None:
    after, refused = kept(module(also_summed))
    assert refused == []
    assert sum("first_rows" in name for name in kernels(after)) == 1
    state = StateInPlace.of(after)
    assert state is not None
    assert state.copied == [1]
    assert len(after["main"].ret_ty.fields) == 2


def test_nothing_without_states_or_for_a_gpu() -> None:
    mod = module(attention)
    assert StateInPlace.of(kept(mod, states=())[0]) is None
    assert StateInPlace.of(kept(mod, machine=resolve_target("nvidia-h200"))[0]) is None


def read_elsewhere(emit: Any, *params: Any) -> list[relax.Expr]:
    return [*attention(emit, *params), emit(op.sum(params[1]))]


def other_order(emit: Any, q: Any, past_k: Any, past_v: Any, k: Any, v: Any) -> list[relax.Expr]:
    return [q, appended(emit, k, past_k), appended(emit, past_v, v)]


def other_axis(emit: Any, q: Any, past_k: Any, past_v: Any, k: Any, v: Any) -> list[relax.Expr]:
    return [q, emit(op.concat([past_k, past_k], axis=1)), appended(emit, past_v, v)]


def no_concatenation(emit: Any, q: Any, past_k: Any, past_v: Any, k: Any, v: Any) -> list[Any]:
    return [q, emit(op.add(past_k, past_k)), appended(emit, past_v, v)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (read_elsewhere, "something else than the concatenation reads it"),
        (other_order, "its output begins with something else"),
        (other_axis, "along another axis"),
        (no_concatenation, "not a concatenation of it with new rows"),
    ],
)
def test_one_is_left_and_the_other_kept(body: Any, words: str) -> None:
    after, refused = kept(module(body))
    assert len(refused) == 1
    assert words in refused[0]
    state = StateInPlace.of(after)
    assert state is not None
    assert state.inputs == [[2, 2]]


def test_what_grows_by_no_open_size_stays() -> None:
    after, refused = kept(module(attention, past=tirx.const(5, "int64")))
    assert set(refused) == {"its size is not one that a run decides"}
    assert StateInPlace.of(after) is None


def test_a_model_of_one_output() -> None:
    after, refused = kept(module(lambda emit, q, p, *_: [appended(emit, p, q)]), ((1, 0, 2),))
    assert refused == ["the model has one output only"]
    assert StateInPlace.of(after) is None


def test_rows_are_appended_and_none_beyond_the_end() -> None:
    capacity = tirx.Var("capacity", "int64")
    rows = relax.TensorType([BATCH, 2, LENGTH, 8], "float32")
    func = append_rows([BATCH, tirx.const(2, "int64"), capacity, tirx.const(8, "int64")], rows, 2)
    append = built({"append": func})["append"]
    draw = np.random.default_rng(0)
    for held, length in ((0, 3), (2, 1), (4, 3), (6, 2)):
        buffer = draw.standard_normal((3, 2, 6, 8)).astype("float32")
        new = draw.standard_normal((3, 2, length, 8)).astype("float32")
        wanted = np.concatenate([buffer[:, :, :held], new, buffer[:, :, held + length :]], 2)
        given = tvm.runtime.tensor(buffer)
        append(given, tvm.runtime.tensor(new), held)
        np.testing.assert_array_equal(given.numpy(), wanted[:, :, :6])


def test_rows_of_each_sequence_follow_its_own_and_none_is_beyond_the_end() -> None:
    capacity, heads, depth = tirx.Var("capacity", "int64"), 2, 3
    sizes = [BATCH, tirx.const(heads, "int64"), capacity, tirx.const(depth, "int64")]
    rows = relax.TensorType([BATCH, heads, LENGTH, depth], "float32")
    func = append_rows(sizes, rows, 2, by_sequence=True)
    append = built({"append": func})["append"]
    draw = np.random.default_rng(0)
    # The last sequence has no room for all, none, or is said to have more than there is room for.
    for starts, length in (([0, 3, 4], 2), ([2], 1), ([0, 1, 5, 6, 9], 3), ([], 1)):
        buffer = draw.standard_normal((len(starts), heads, 6, depth)).astype("float32")
        new = draw.standard_normal((len(starts), heads, length, depth)).astype("float32")
        wanted = buffer.copy()
        for own, added, start in zip(wanted, new, starts, strict=True):
            own[:, start : start + length] = added[:, : max(0, 6 - start)]
        given = tvm.runtime.tensor(buffer)
        append(given, tvm.runtime.tensor(new), tvm.runtime.tensor(np.array(starts, "int64")))
        np.testing.assert_array_equal(given.numpy(), wanted)
