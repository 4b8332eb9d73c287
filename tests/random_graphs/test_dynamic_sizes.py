"""Random ONNX graphs of any sizes compute what ONNX Runtime computes, at sizes never seen."""

import random
from collections import Counter

import numpy as np
import onnx
import pytest
from comparison import difference, is_tame, session_of
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

# Zero is left out: some operators of ONNX Runtime end the process then.
SIZES = (1, 2, 3, 5, 7, 8, 11, 16, 17, 31)
DRAWS = 5
REFUSALS = (Fail, InvalidArgument, RuntimeException)


def with_dynamic_sizes(
    graph: RandomGraph, rng: random.Random
) -> tuple[onnx.ModelProto, dict[str, int]]:
    """The model with some sizes of its inputs dynamic, and the sizes that it was built with.

    Equal sizes get one name: what is added to each other stays as large as each other. Half of the
    models have a dynamic batch alone.
    """
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    firsts = Counter(array.shape[0] for array in graph.inputs.values() if array.ndim)
    batch = firsts.most_common(1)[0][0] if firsts else 0
    every = {size for array in graph.inputs.values() for size in array.shape if size > 1}
    only_batch = rng.random() < 0.5
    open_sizes = {batch} if only_batch else {size for size in sorted(every) if rng.random() < 0.6}
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value in open_sizes and not (only_batch and axis):
                dim.dim_param = f"size{dim.dim_value}"
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    dims = [dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim]
    return model, {d.dim_param: int(d.dim_param[4:]) for d in dims if d.dim_param}


def inputs_of(
    graph: RandomGraph, model: onnx.ModelProto, sizes: dict[str, int]
) -> dict[str, np.ndarray]:
    """The graph's inputs, repeated or cut to other sizes."""
    found = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in dims]
        found[value.name] = np.resize(graph.inputs[value.name], shape)
    return found


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
        inputs = inputs_of(graph, model, sizes)
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


@given(graph=random_graphs, rng=st.randoms(use_true_random=False))
@settings(COMMON, max_examples=6, derandomize=True)
def test_fixed_graphs(graph: RandomGraph, rng: random.Random) -> None:
    check(graph, rng)


@pytest.mark.slow
@given(graph=random_graphs, rng=st.randoms(use_true_random=False))
@settings(COMMON, max_examples=500)
def test_new_graphs(graph: RandomGraph, rng: random.Random) -> None:
    check(graph, rng)
