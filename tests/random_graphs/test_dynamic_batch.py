"""Random ONNX graphs with a batch of any size compute what ONNX Runtime computes at each size."""

from collections import Counter

import numpy as np
import onnx
import pytest
from comparison import difference, is_tame, session_of
from graph_builder import RandomGraph
from hypothesis import assume, given, note, settings
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException
from test_random_graphs import COMMON, random_graphs
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import TvmExtError
from tvm_ext.tir_schedules.cpu import batch_loop

BATCHES = (1, 2, 3, 5, 8)
REFUSALS = (Fail, InvalidArgument, RuntimeException)


def with_dynamic_batch(graph: RandomGraph) -> onnx.ModelProto | None:
    """The model with the first size of its inputs dynamic, where they have the same."""
    firsts = Counter(array.shape[0] for array in graph.inputs.values() if array.ndim)
    if not firsts:
        return None
    batch, _ = firsts.most_common(1)[0]
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if dims and dims[0].dim_value == batch:
            dims[0].dim_param = "batch"
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return model


def inputs_of(graph: RandomGraph, model: onnx.ModelProto, batch: int) -> dict[str, np.ndarray]:
    """The graph's inputs, repeated or cut to a batch of another size."""
    found = {}
    for value in model.graph.input:
        array = graph.inputs[value.name]
        dims = value.type.tensor_type.shape.dim
        if dims and dims[0].dim_param:
            array = np.resize(array, (batch, *array.shape[1:]))
        found[value.name] = array
    return found


def check(graph: RandomGraph) -> None:
    note(repr(graph))
    model = with_dynamic_batch(graph)
    assume(model is not None)
    try:
        session = session_of(model)
        compiled = tvm_ext.compile(model, HOST)
    except (*REFUSALS, TvmExtError):
        # A size that the graph itself states: nothing is dynamic in it.
        assume(False)
    names = [output.name for output in session.get_outputs()]
    ran = 0
    for batch in BATCHES:
        inputs = inputs_of(graph, model, batch)
        try:
            wanted = dict(zip(names, session.run(None, inputs), strict=True))
            got = compiled.run(inputs)
        except (*REFUSALS, TvmExtError):
            # A size that the graph states does not fit to this one.
            continue
        if not is_tame(wanted):
            continue
        found = [f"{n}: {p}" for n in names if (p := difference(got[n], wanted[n]))]
        assert not found, (batch, found)
        ran += 1
    assume(ran)


@pytest.fixture(autouse=True)
def _small_items_are_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs as small as these would be scheduled whole."""
    monkeypatch.setattr(batch_loop, "LEAST_ELEMENTS", 1)


@given(graph=random_graphs)
@settings(COMMON, max_examples=6, derandomize=True)
def test_fixed_graphs(graph: RandomGraph) -> None:
    check(graph)


@pytest.mark.slow
@given(graph=random_graphs)
@settings(COMMON, max_examples=500)
def test_new_graphs(graph: RandomGraph) -> None:
    check(graph)
