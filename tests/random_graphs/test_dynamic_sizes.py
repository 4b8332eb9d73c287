"""Random ONNX graphs of any sizes compute what ONNX Runtime computes, at sizes never seen."""

import random

import pytest
from comparison import difference, is_tame, session_of
from dynamic_sizes import SIZES, inputs_of, with_dynamic_sizes
from graph_builder import RandomGraph
from hypothesis import assume, event, given, note, settings
from hypothesis import strategies as st
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException
from test_random_graphs import COMMON, random_graphs
from unoptimised import HOST

import tvm_ext
from tvm_ext.compiler import kernel_records
from tvm_ext.errors import TvmExtError
from tvm_ext.tir_schedules.cpu import batch_loop

DRAWS = 5
REFUSALS = (Fail, InvalidArgument, RuntimeException)


def check(graph: RandomGraph, rng: random.Random) -> None:
    """Each draw is right, or refused as sizes that do not fit are; nothing else may be raised."""
    note(repr(graph))
    model, built_with = with_dynamic_sizes(graph, rng)
    assume(built_with)
    note(f"dynamic: {built_with}")
    try:
        session = session_of(model)
        compiled = tvm_ext.compile(model, HOST)
    except (*REFUSALS, TvmExtError):
        # A size that the graph itself states: nothing is dynamic in it.
        assume(False)
    names = [output.name for output in session.get_outputs()]
    ran = 0
    for draw in range(DRAWS):
        sizes = {name: rng.choice(SIZES) for name in built_with} if draw else built_with
        inputs = inputs_of(graph.inputs, model, sizes)
        try:
            wanted = dict(zip(names, session.run(None, inputs), strict=True))
        except REFUSALS:
            wanted = None
        try:
            got = compiled.run(inputs)
        except TvmExtError:
            event("refused" if wanted is None else "refused alone")
            continue
        if wanted is None or not is_tame(wanted):
            continue
        found = [f"{n}: {p}" for n in names if (p := difference(got[n], wanted[n]))]
        assert not found, (sizes, found)
        shares = compiled._shares(inputs)
        event("right" if shares is None else "right in micro-batches")
        ran += 1
    assume(ran)


@pytest.fixture(autouse=True)
def _small_items_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs as small as these would be scheduled, and run, whole."""
    monkeypatch.setattr(batch_loop, "LEAST_ELEMENTS", 1)
    monkeypatch.setattr(kernel_records, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(kernel_records, "_OWN_TO_WEIGHTS", 0.0)


@pytest.mark.extended
@given(graph=random_graphs, rng=st.randoms(use_true_random=False))
@settings(COMMON, max_examples=6, derandomize=True)
def test_fixed_graphs(graph: RandomGraph, rng: random.Random) -> None:
    check(graph, rng)


@pytest.mark.slow
@given(graph=random_graphs, rng=st.randoms(use_true_random=False))
@settings(COMMON, max_examples=500)
def test_new_graphs(graph: RandomGraph, rng: random.Random) -> None:
    check(graph, rng)
