"""A decoder of which the session's program is compiled, and its own one where a run needs it."""

from typing import Any

import numpy as np
import pytest
from decoder_models import STATE, Reference, decoder, merged_decoder, tokens
from small_models import mlp
from unoptimised import HOST

import tvm_ext
from tvm_ext import api
from tvm_ext.session.decoder_model import DecoderModel


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each program that is compiled keeps a state in place, as they come."""
    found: list[bool] = []
    compiled = api._compiled

    def counting(*arguments: Any, **options: Any) -> tvm_ext.CompiledModel:
        program = compiled(*arguments, **options)
        found.append(program.report.state is not None)
        return program

    monkeypatch.setattr(api, "_compiled", counting)
    return found


@pytest.mark.extended
def test_a_text_takes_one_program(programs: list[bool]) -> None:
    model = api.compile_decoder(decoder(), HOST)
    assert isinstance(model, DecoderModel)
    session = model.session(capacity=8, last_position=["logits"])
    reference = Reference(decoder(), STATE)
    for length in (3, 1, 1):
        inputs = tokens(length, session.length)
        wanted = reference.run(inputs)["logits"][:, -1:]
        np.testing.assert_allclose(session.run(inputs)["logits"], wanted, rtol=2e-5, atol=2e-5)
    assert programs == [True]
    assert session.statistics.bytes_copied == 0


@pytest.mark.slow
def test_its_own_program_is_compiled_for_a_run(programs: list[bool]) -> None:
    model = api.compile_decoder(decoder(), HOST)
    whole = tvm_ext.compile(decoder(), HOST)
    assert (model.inputs, model.outputs) == (whole.inputs, whole.outputs)
    past = {name: np.zeros((1, 2, 0, 8), "float32") for name in STATE}
    inputs = tokens(3, 0) | past
    found, wanted = model.run(inputs), whole.run(inputs)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)
    assert programs == [True, False, False]


@pytest.mark.slow
def test_other_states_get_a_program_of_their_own(programs: list[bool]) -> None:
    model = api.compile_decoder(decoder(), HOST)
    session = model.session(capacity=8)
    assert session.run(tokens(3, 0))["logits"].shape == (1, 3, 11)
    assert session.in_place == tuple(STATE)
    assert programs == [True, False, True]


@pytest.mark.slow
def test_a_decoder_with_branches_has_one_program(programs: list[bool]) -> None:
    model = api.compile_decoder(merged_decoder(), HOST)
    assert isinstance(model, tvm_ext.CompiledModel)
    session = model.session(capacity=8, last_position=["logits"])
    inputs = tokens(3, 0) | {"use_cache_branch": np.array(False)}
    assert session.run(inputs)["logits"].shape == (1, 1, 11)
    assert programs == [False]


def test_a_model_without_a_state_is_compiled_as_it_is(programs: list[bool]) -> None:
    assert isinstance(api.compile_decoder(mlp(), HOST), tvm_ext.CompiledModel)
    assert programs == [False]
