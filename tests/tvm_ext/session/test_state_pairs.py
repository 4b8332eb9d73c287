"""Which outputs are taken for the next run's inputs: by names, types and shapes."""

import pytest

from tvm_ext.session import StatePair, find_state
from tvm_ext.session.state_pairs import new_rows
from tvm_ext.tensor_spec import TensorSpec


def spec(name: str, *shape: int | str, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name, dtype, shape)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("past_key_values.0.key", "present.0.key"),
        ("past_key_values.3.decoder.value", "present.3.decoder.value"),
        ("past_0", "present_0"),
        ("past_key_self_1", "present_key_self_1"),
        ("past_key_values_0_key", "present_key_values_0_key"),
        ("h", "hn"),
        ("c0", "cn"),
        ("h_0", "h_n"),
        ("state", "stateN"),
        ("state_in", "state_out"),
        ("in_cache0", "out_cache0"),
        ("input_states", "output_states"),
        ("cached_len_0", "new_cached_len_0"),
        ("cached_key_0", "new_key_0"),
        ("prev_state", "next_state"),
        ("cache_last_channel", "cache_last_channel_next"),
    ],
)
def test_names(before: str, after: str) -> None:
    (pair,) = find_state([spec("x", "n"), spec(before, 2, 4)], [spec("y"), spec(after, 2, 4)])
    assert pair == StatePair(before, after, "replace")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (spec("input", 4), spec("output", 4)),
        (spec("x", 4), spec("y", 4)),
        (spec("h", 4), spec("hn", 5)),
        (spec("h", 4), spec("hn", 4, 1)),
        (spec("h", 4), spec("hn", 4, dtype="int64")),
        (spec("h", dtype="seq(tensor(float))"), spec("hn", dtype="seq(tensor(float))")),
    ],
)
def test_what_is_no_pair(before: TensorSpec, after: TensorSpec) -> None:
    assert find_state([before], [after]) == ()


PAST = spec("past_key_values.0.key", "batch", 2, "past", 8)


@pytest.mark.parametrize(
    ("size", "rows"),
    [
        ("past + length", ("length",)),
        ("length + past", ("length",)),
        ("past + 1", (1,)),
        ("past + length + 2", ("length", 2)),
        ("past", None),
        ("all", None),
        ("past + past", None),
        ("T.min(past + 1, 64)", None),
    ],
)
def test_new_rows(size: str, rows: tuple[int | str, ...] | None) -> None:
    result = spec("present.0.key", "batch", 2, size, 8)
    assert new_rows(PAST, result, 2) == rows


@pytest.mark.parametrize(
    ("name", "result", "kind"),
    [
        ("past_key_values.0.key", ("batch", 2, "past + length", 8), "append"),
        ("past_key_values.0.decoder.key", ("a", "b", "c", "d"), "append"),
        ("past_key_values.0.decoder.key", ("...",), "append"),
        ("past_key_values.0.encoder.key", ("a", "b", "c", "d"), "replace"),
        ("past_key_values.0.key", ("batch", 2, "past", 8), "replace"),
    ],
)
def test_what_grows(name: str, result: tuple[int | str, ...], kind: str) -> None:
    output = name.replace("past_key_values", "present")
    (pair,) = find_state([spec(name, *PAST.shape)], [spec(output, *result)])
    assert pair.kind == kind
    assert pair.axis == (2 if kind == "append" else None)


def test_an_output_is_one_state_only() -> None:
    inputs = [spec("past_0", 1), spec("past_key_values_0", 1)]
    assert len(find_state(inputs, [spec("present_0", 1)])) == 1
