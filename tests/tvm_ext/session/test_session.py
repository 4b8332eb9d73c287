"""A session: what it computes, what it allocates and copies, and how it goes back and on."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from decoder_models import (
    STATE,
    Reference,
    decoder,
    decoder_that_reads_its_past,
    decoder_that_sums_its_keys,
    group_query_decoder,
    merged_decoder,
    tokens,
)
from host_models import model as host_model
from onnx import TensorProto
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import InputError
from tvm_ext.session import Session

STEPS = (3, 1, 1, 5, 2, 1)


@pytest.fixture(scope="module")
def compiled() -> tvm_ext.CompiledModel:
    return tvm_ext.compile(decoder(), HOST)


def assert_equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-5, atol=2e-5, err_msg=name)


def check_steps(session: Session, proto: onnx.ModelProto, batch: int = 1) -> None:
    """Runs of several lengths give what ONNX Runtime does with its outputs as next inputs."""
    reference = Reference(proto, STATE, batch)
    for length in STEPS:
        inputs = tokens(length, session.length, batch)
        assert_equal(session.run(inputs), reference.run(inputs))
    assert session.length == sum(STEPS)
    assert_equal(session.save(), reference.state)


@pytest.mark.extended
@pytest.mark.parametrize("batch", [1, 3])
def test_nothing_of_the_cache_is_copied_or_allocated(
    compiled: tvm_ext.CompiledModel, batch: int
) -> None:
    session = compiled.session(capacity=16)
    session.run(tokens(1, 0, batch))
    allocated = session.statistics.bytes_allocated
    # Two states of two heads of eight numbers, of four bytes each.
    assert allocated == 2 * batch * 16 * 2 * 8 * 4
    session.roll_back(0)
    check_steps(session, decoder(), batch)
    assert session.in_place == tuple(STATE)
    assert session.batch == batch
    assert session.statistics.runs == 1 + len(STEPS)
    assert session.statistics.bytes_allocated == allocated
    assert session.statistics.bytes_copied == 0


@pytest.mark.slow
def test_a_state_that_something_else_reads_is_sliced(tmp_path: Path) -> None:
    proto = decoder_that_sums_its_keys()
    session = tvm_ext.compile(proto, HOST).session(capacity=20)
    assert session.in_place == tuple(STATE)
    check_steps(session, proto)
    # The keys alone: 8 numbers of two heads, for the rows of each run.
    rows = sum(sum(STEPS[: n + 1]) for n in range(len(STEPS)))
    assert session.statistics.bytes_copied == rows * 2 * 8 * 4


@pytest.mark.extended
def test_a_past_that_is_read_is_handed_on_as_an_array() -> None:
    proto = decoder_that_reads_its_past()
    session = tvm_ext.compile(proto, HOST).session(capacity=20)
    assert session.in_place == ("past_key_values.0.value",)
    check_steps(session, proto)
    assert session.statistics.bytes_copied > 0


@pytest.mark.extended
@pytest.mark.parametrize("shapes", [{}, {"input_ids": [1, "length"]}])
def test_group_query_attention(shapes: dict[str, list[int | str]]) -> None:
    """Heads of the query share keys, which one sequence has one behind the other."""
    proto = group_query_decoder()
    session = tvm_ext.compile(proto, HOST, input_shapes=shapes).session(20)
    assert session.in_place == tuple(STATE)
    reference = Reference(proto, STATE)
    for length in STEPS:
        held = session.length + length
        inputs = {
            "input_ids": tokens(length, session.length)["input_ids"],
            "lengths": np.array([held - 1], "int32"),
            "total": np.array(held, "int32"),
        }
        assert_equal(session.run(inputs), reference.run(inputs))
    assert session.statistics.bytes_copied == 0


@pytest.mark.extended
def test_sequences_of_several_lengths_are_kept_in_place() -> None:
    """The first run fills the shorter one up behind, and its next keys go where these were."""
    proto = group_query_decoder()
    session = tvm_ext.compile(proto, HOST).session(20)
    reference = Reference(proto, STATE, 2)
    lengths = np.array([5, 3])
    for new in (5, 1, 1, 1):
        inputs = {
            "input_ids": tokens(new, session.length, 2)["input_ids"],
            "lengths": (lengths - 1).astype("int32"),
            "total": np.array(session.length + new, "int32"),
        }
        found, wanted = session.run(inputs)["logits"], reference.run(inputs)["logits"]
        for row, length in enumerate(lengths if new > 1 else (1, 1)):
            np.testing.assert_allclose(found[row, :length], wanted[row, :length], 2e-5, 2e-5)
        lengths = lengths + 1
    assert session.in_place == tuple(STATE)
    assert session.statistics.bytes_copied == 0


@pytest.mark.extended
def test_a_decoder_with_branches() -> None:
    proto = merged_decoder()
    session = tvm_ext.compile(proto, HOST).session(capacity=20)
    reference = Reference(proto, STATE)
    for length in STEPS:
        flag = {"use_cache_branch": np.array(session.length > 0)}
        inputs = tokens(length, session.length) | flag
        assert_equal(session.run(inputs), reference.run(inputs))
    assert session.length == sum(STEPS)


def test_a_model_from_a_file_hands_arrays_on(
    compiled: tvm_ext.CompiledModel, tmp_path: Path
) -> None:
    compiled.save(tmp_path / "decoder.tvmx")
    session = tvm_ext.load(tmp_path / "decoder.tvmx").session(capacity=20)
    check_steps(session, decoder())
    assert session.in_place == ()
    assert session.statistics.bytes_copied > 0


def test_goes_back_and_on_again(compiled: tvm_ext.CompiledModel) -> None:
    session = compiled.session(capacity=16)
    session.run(tokens(4, 0))
    saved, branch = session.save(), session.branch()
    wanted = session.run(tokens(2, 4))
    session.run(tokens(3, 6))
    session.roll_back(4)
    assert session.length == 4
    assert_equal(session.run(tokens(2, 4)), wanted)
    assert_equal(branch.run(tokens(2, 4)), wanted)
    other = compiled.session(capacity=8)
    other.restore(saved)
    assert_equal(other.run(tokens(2, 4)), wanted)
    # What the branches wrote is their own.
    branch.run(tokens(3, 6, seed=7))
    assert_equal(other.save(), {n: array[:, :, :6] for n, array in session.save().items()})


def test_a_branch_of_a_new_session(compiled: tvm_ext.CompiledModel) -> None:
    session = compiled.session(capacity=16)
    assert session.save() == {}
    assert session.branch().length == 0
    session.restore({})
    session.run(tokens(2, 0, batch=2))
    session.reset()
    assert session.length == 0
    session.run(tokens(2, 0, batch=1))
    assert session.batch == 1


def test_a_full_cache(compiled: tvm_ext.CompiledModel) -> None:
    session = compiled.session(capacity=6)
    session.run(tokens(5, 0))
    wanted = session.branch().run(tokens(1, 5))
    with pytest.raises(InputError, match="holds 5 of 6 rows and gets 2 more; expected room"):
        session.run(tokens(2, 5))
    assert session.length == 5
    assert_equal(session.run(tokens(1, 5)), wanted)


# States that are replaced.


def recurrent(state: tuple[str, str]) -> onnx.ModelProto:
    """A step of a recurrent layer and of a stream's window."""
    before, after = state
    nodes = [
        node("MatMul", [before, "w"], ["turned"]),
        node("Add", ["turned", "x"], ["sum"]),
        node("Tanh", ["sum"], [after]),
        node("Concat", ["cache", "x"], ["window"], axis=0),
        node("Slice", ["window", "one", "end", "zero"], ["new_cache"]),
        node("ReduceMean", ["window"], ["y"], keepdims=0),
    ]
    inputs = [value(name, ["n", 4]) for name in ("x", before)] + [value("cache", ["m", 4])]
    outputs = [value("y", []), value(after, ["n", 4]), value("new_cache", ["m", 4])]
    integers = {"one": np.array([1]), "end": np.array([1 << 40]), "zero": np.array([0])}
    return model(nodes, inputs, outputs, w=rand(4, 4), **integers)


@pytest.mark.extended
@pytest.mark.parametrize("names", [("h", "hn"), ("state_in", "state_out"), ("first", "second")])
def test_states_that_are_replaced(names: tuple[str, str]) -> None:
    stated = {"second": "first", "new_cache": "cache"} if names[0] == "first" else None
    session = tvm_ext.compile(recurrent(names), HOST).session(batch=1, states=stated)
    assert [pair.kind for pair in session.state] == ["replace", "replace"]
    x, wanted = rand(1, 4, seed=3), np.zeros((1, 4), "float32")
    for _ in range(3):
        session.run({"x": x})
        wanted = np.tanh(wanted @ rand(4, 4) + x)
    np.testing.assert_allclose(session.save()[names[0]], wanted, rtol=1e-5)
    assert session.length == 0
    with pytest.raises(InputError, match="have only their last values"):
        session.roll_back(0)
    branch = session.branch()
    assert_equal(branch.run({"x": x}), session.run({"x": x}))


def test_a_model_with_steps_on_the_host() -> None:
    nodes = [
        node("StringNormalizer", ["text"], ["lower"], case_change_action="LOWER"),
        node("Add", ["state", "x"], ["stateN"]),
    ]
    proto = host_model(
        nodes,
        [
            value("text", [1], TensorProto.STRING),
            value("state", [1, 2]),
            value("x", [1, 2]),
        ],
        [value("lower", [1], TensorProto.STRING), value("stateN", [1, 2])],
    )
    session = tvm_ext.compile(proto, HOST).session()
    inputs = {"text": np.array(["A"], object), "x": np.ones((1, 2), "float32")}
    for _ in range(3):
        assert session.run(inputs)["lower"].tolist() == ["a"]
    assert session.save()["state"].tolist() == [[3, 3]]


# Messages.


def _refused(compiled: tvm_ext.CompiledModel, act: Callable[[Session], object], words: str) -> None:
    session = compiled.session(capacity=8)
    session.run(tokens(2, 0))
    saved = session.save()
    with pytest.raises(InputError, match=words):
        act(session)
    assert_equal(session.save(), saved)


KEY, VALUE = STATE
ROWS = np.zeros((1, 2, 3, 8), "float32")
MANY_ROWS = np.zeros((1, 2, 9, 8), "float32")


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda s: s.roll_back(3), "rolled back to a length of 3; expected one from 0 to 2"),
        (lambda s: s.run({KEY: ROWS}), "is a state, which the session holds; expected only"),
        (lambda s: s.run([ROWS]), "inputs are a list, expected a mapping"),
        (lambda s: s.run({}), "input 'input_ids' is missing"),
        (lambda s: s.restore({KEY: ROWS}), f"the state lacks '{VALUE}'; expected"),
        (lambda s: s.restore({KEY: ROWS[0], VALUE: ROWS}), "the state has float32.2, 3, 8. for"),
        (lambda s: s.restore({KEY: ROWS[:, :, :2], VALUE: ROWS}), "hold 2 and 3 rows; expected"),
        (lambda s: s.restore({KEY: ROWS, VALUE: ROWS, "x": ROWS}), "'x', which the model lacks"),
        (
            lambda s: s.restore({KEY: MANY_ROWS, VALUE: MANY_ROWS}),
            "holds 9 of 8 rows",
        ),
    ],
)
def test_refusals(
    compiled: tvm_ext.CompiledModel, act: Callable[[Session], object], words: str
) -> None:
    _refused(compiled, act, words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"capacity": 0}, "the capacity is 0; expected 1 or more"),
        ({"batch": 0}, "the batch is 0; expected 1 or more"),
        ({"states": {"present.0.kex": KEY}}, "states names output 'present.0.kex'"),
        ({"states": {"present.0.key": "past"}}, "states names input 'past'"),
        ({"states": {"logits": "input_ids"}}, "expected one output of the input's type and rank"),
        ({"states": {}}, "has no state: no output .logits, "),
    ],
)
def test_sessions_that_cannot_be(
    compiled: tvm_ext.CompiledModel, arguments: dict, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        compiled.session(**arguments)


def test_another_batch_than_the_session_has(compiled: tvm_ext.CompiledModel) -> None:
    session = compiled.session(capacity=8, batch=2)
    with pytest.raises(InputError, match="the inputs are of batch 1; expected 2"):
        session.run(tokens(2, 0))


def test_another_batch_than_the_last_run_had(compiled: tvm_ext.CompiledModel) -> None:
    def run_another_batch(session: Session) -> None:
        session.run(tokens(1, 2, batch=3))

    _refused(compiled, run_another_batch, "the inputs are of batch 3; expected 1")


def test_sessions_share_a_program(compiled: tvm_ext.CompiledModel) -> None:
    first, second = compiled.session(), compiled.session(capacity=16)
    assert first._program is second._program
    assert first.branch()._program is first._program


def test_a_model_without_state() -> None:
    proto = model([node("Relu", ["x"], ["y"])], [value("x", ["n", 4])], [value("y", ["n", 4])])
    with pytest.raises(InputError, match=r"has no state: no output .y. is named as an input"):
        tvm_ext.compile(proto, HOST).session()


# The last position alone.


def check_last_position(session: Session, proto: onnx.ModelProto) -> None:
    reference = Reference(proto, STATE)
    for length in STEPS:
        inputs = tokens(length, session.length)
        wanted = reference.run(inputs)
        assert_equal(session.run(inputs), wanted | {"logits": wanted["logits"][:, -1:]})


def test_logits_of_the_last_position(compiled: tvm_ext.CompiledModel) -> None:
    session = compiled.session(capacity=20, last_position=["logits"])
    check_last_position(session, decoder())
    assert session.in_place == tuple(STATE)
    program = session._program
    assert program is not None
    assert program.outputs[0].shape == ("batch", 1, 11)
    state = program.report.state
    assert state is not None
    assert state.last_position == ["logits"]
    assert [one.name for one in state.model_outputs] == ["logits", *STATE.values()]
    branch = session.branch()
    branch.roll_back(3)
    assert branch.run(tokens(4, 3))["logits"].shape == (1, 1, 11)


@pytest.mark.slow
def test_they_are_sliced_where_the_program_computes_all() -> None:
    proto = merged_decoder()
    session = tvm_ext.compile(proto, HOST).session(capacity=20, last_position=["logits"])
    inputs = tokens(3, 0) | {"use_cache_branch": np.array(False)}
    wanted = Reference(proto, STATE).run(inputs)["logits"][:, -1:]
    np.testing.assert_allclose(session.run(inputs)["logits"], wanted, rtol=2e-5)


@pytest.mark.parametrize("name", ["logit", "present.0.key"])
def test_what_has_no_positions(compiled: tvm_ext.CompiledModel, name: str) -> None:
    with pytest.raises(InputError, match=f"last_position names '{name}'; expected an output"):
        compiled.session(last_position=[name])
