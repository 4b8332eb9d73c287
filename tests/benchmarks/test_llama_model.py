"""The decoder of Llama's form: a valid model, of the stated size, with ONNX Runtime's numbers."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from llama_model import STORAGES, LlamaForm, Storage, llama_model
from unoptimised import HOST

import tvm_ext
from tvm_ext.api import compile_decoder
from tvm_ext.check.reference import ReferenceSession

SMALL = {
    "layers": 2,
    "hidden": 96,
    "heads": 6,
    "shared_heads": 2,
    "depth": 16,
    "intermediate": 160,
    "vocabulary": 101,
    "positions": 64,
}

# Activations that are rounded to 8 bits differ by a step where a sum is between two.
LARGEST = {"int8": 0.05}


def storages(quick: set[str]) -> list[Any]:
    """All ways to store weights; ``make test`` has each of them in one of two tests."""
    return [one if one in quick else pytest.param(one, marks=pytest.mark.slow) for one in STORAGES]


@pytest.mark.slow
@pytest.mark.parametrize("storage", storages(quick={"int8", "int4"}))
def test_numbers_at_open_sizes(storage: Storage) -> None:
    form = LlamaForm(storage=storage, **SMALL | {"layers": 1})
    proto = llama_model(form)
    onnx.checker.check_model(proto)
    session = ReferenceSession(proto)
    compiled = tvm_ext.compile(proto, HOST.with_cores(1))
    for batch, length, past in [(1, 1, 20), (1, 7, 0), (2, 1, 5), (2, 3, 0), (1, 17, 4)]:
        inputs = form.inputs(batch, length, past)
        found = compiled.run(inputs)
        for name, expected in session.run(inputs).items():
            assert found[name].shape == expected.shape
            difference = np.abs(found[name] - expected).max() / np.abs(expected).max()
            assert difference < LARGEST.get(storage, 1e-5), (name, batch, length, past)


@pytest.mark.slow
@pytest.mark.parametrize("storage", storages(quick={"float32"}))
def test_a_session_of_the_last_position(storage: Storage) -> None:
    """No pass fails on the program of a session: a warning of that would be an error here."""
    form = LlamaForm(storage=storage, **SMALL)
    proto = llama_model(form)
    reference = ReferenceSession(proto)
    model = compile_decoder(proto, HOST.with_cores(1))
    for batch, length, past in [(1, 7, 0), (1, 1, 20), (2, 1, 5), (2, 3, 4), (1, 17, 1)]:
        inputs = form.inputs(batch, length, past)
        state = {name: array for name, array in inputs.items() if name.startswith("past")}
        given = {name: array for name, array in inputs.items() if name not in state}
        session = model.session(capacity=32, batch=batch, last_position=["logits"])
        if past:
            session.restore(state)
        found = session.run(given)["logits"]
        wanted = reference.run(inputs)["logits"][:, -1:]
        assert found.shape == wanted.shape
        difference = np.abs(found - wanted).max() / np.abs(wanted).max()
        assert difference < LARGEST.get(storage, 1e-5), (batch, length, past)


def test_grouped_attention_computes_the_same() -> None:
    forms = LlamaForm(**SMALL), LlamaForm(**SMALL, is_grouped=True)
    found = []
    for form in forms:
        proto = llama_model(form)
        onnx.checker.check_model(proto)
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        found.append(session.run(["logits"], form.inputs(1, 3, 5))[0])
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-4)


def test_size_is_that_of_the_published_model() -> None:
    form = LlamaForm()
    # 134.5 million; the table of embeddings, which a run does not read through, is not counted.
    assert form.weights() == 134_479_872
    assert LlamaForm(storage="int4").weight_bytes() == form.weights() * 5 // 8
