"""Random ONNX graphs, compiled at O0 and O3, compute what ONNX Runtime computes."""

import pytest
from arithmetic_operators import ARITHMETIC
from comparison import differences, is_tame, reference
from graph_builder import RandomGraph, build_graph
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st
from spatial_operators import SPATIAL

random_graphs = st.randoms(use_true_random=False).map(
    lambda rng: build_graph(rng, ARITHMETIC + SPATIAL)
)
# A graph takes half a second: deadlines and speed checks are for smaller things.
COMMON = settings(
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def check(graph: RandomGraph) -> None:
    note(repr(graph))
    expected = reference(graph)
    assume(is_tame(expected))
    found = [line for level in ("O0", "O3") for line in differences(graph, expected, level)]
    assert not found, found


@given(graph=random_graphs)
@settings(COMMON, max_examples=6, derandomize=True)
def test_fixed_graphs(graph):
    check(graph)


@pytest.mark.slow
@given(graph=random_graphs)
@settings(COMMON, max_examples=500)
def test_new_graphs(graph):
    check(graph)
