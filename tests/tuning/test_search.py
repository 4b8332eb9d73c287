"""The search for one kernel: what it proposes, in which order, and what it never repeats."""

import pytest
from small_kernels import add_task, matmul_task
from tvm.s_tir import meta_schedule as ms

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.tuning import search as kernel_search
from tvm_ext.tuning.search import KernelSearch

MACHINE = resolve_target("avx512").with_cores(2)


@pytest.fixture(autouse=True)
def for_the_machine():
    with compiling_for(MACHINE):
        yield


def new_search(task, batch=8, seed=0, model=None) -> KernelSearch:
    model = model or ms.cost_model.RandomModel(seed=1)
    return KernelSearch(task, MACHINE, model, lambda mod: mod, batch, seed)


def distance(candidate) -> float:
    """Made-up seconds with the least at 32 columns, 6 rows, no packing, one thread."""
    decisions = candidate.recorded.decisions
    if candidate.recorded.template != "register tile":
        return 100.0
    wanted = {"columns": 16, "rows_0": 6, "packed": 0, "threads": 0}
    return 1.0 + sum(abs(decisions.get(k, v) - v) / (v + 1) for k, v in wanted.items())


def test_default_comes_first():
    search = new_search(matmul_task())
    first = search.propose()
    assert first[0].hash == search.default.hash
    assert first[0].recorded.template == "register tile"
    assert {"register tile", "blockwise"} <= {one.recorded.template for one in first}


@pytest.mark.extended
def test_nothing_twice_and_an_end():
    search = new_search(add_task())
    seen = []
    while found := search.propose():
        seen += [one.hash for one in found]
        search.tell([(one, 1.0) for one in found])
        assert len(seen) < 500
    assert len(seen) == len(set(seen)) > 3


@pytest.mark.extended
def test_what_was_told_is_not_proposed():
    earlier = new_search(matmul_task(), batch=4)
    told = [one for _ in range(3) for one in earlier.propose()]
    search = new_search(matmul_task(), batch=4, seed=5)
    search.tell([(one, None if i % 2 else 1.0) for i, one in enumerate(told)])
    again = [one for _ in range(3) for one in search.propose()]
    assert not {one.hash for one in told} & {one.hash for one in again}


def test_same_seed_same_candidates():
    one, other = new_search(matmul_task(), seed=3), new_search(matmul_task(), seed=3)
    assert [c.hash for c in one.propose()] == [c.hash for c in other.propose()]


@pytest.mark.extended
def test_the_search_closes_in_on_the_best():
    search = new_search(matmul_task(96, 96, 64), seed=3)
    least: list[float] = []
    for _ in range(4):
        times = [(one, distance(one)) for one in search.propose()]
        least.append(min(seconds for _, seconds in times))
        search.tell(times)
    # Without a model, by the neighbours of the best alone: the space has hundreds of points.
    assert min(least) < 1.35
    assert min(least) < least[0]


def test_candidate_is_rebuilt_from_its_trace():
    search = new_search(matmul_task())
    for one in search.propose():
        again = search.candidate(one.recorded.trace)
        assert again.hash == one.hash
        assert again.recorded.decisions == one.recorded.decisions


@pytest.mark.extended
def test_a_logged_candidate_is_remade_as_it_was_or_not_at_all():
    search = new_search(matmul_task())
    one, *_ = search.propose()
    assert search.again(one.trace_json, one.hash).hash == one.hash
    # Other loops than those that were measured.
    assert search.again(one.trace_json, "0" * 16) is None
    assert search.again([["no", "trace"]], one.hash) is None


@pytest.mark.extended
def test_kernels_without_decisions_get_the_space_of_metaschedule(monkeypatch):
    monkeypatch.setattr(kernel_search, "_has_decisions", lambda space: False)
    # TVM's own strategy: how many schedules it makes to pick four from is not looked at.
    monkeypatch.setattr(kernel_search, "_POPULATION", 16)
    search = new_search(matmul_task(), batch=4)
    found = search.propose()
    assert len(found) == 4
    assert {one.recorded.template for one in found} == {""}
    search.tell([(one, 1e-3 * (i + 1)) for i, one in enumerate(found)])
    again = search.propose()
    assert again
    assert not {one.hash for one in found} & {one.hash for one in again}
    assert search.candidate(found[0].recorded.trace).hash == found[0].hash
