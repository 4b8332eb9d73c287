"""Random loop nests compute the same numbers in every order that the scheduler gives them."""

import itertools

import numpy as np
import pytest
from loop_interpreter import interpreted
from random_nests import arguments, random_nest
from thoroughness import one_in

from tvm_ext.polyhedral import loop_scheduler
from tvm_ext.polyhedral.dependences import dependences_of
from tvm_ext.polyhedral.generate_loops import CodeOptions, generated_kernel
from tvm_ext.polyhedral.kernel_domain import kernel_domain
from tvm_ext.polyhedral.loop_scheduler import NoSchedule, SchedulerOptions, schedule_loops

OPTIONS = [
    SchedulerOptions(tile=tile, inner_tile=4, lanes=lanes, fuses=fuses, cache_bytes=cache_bytes)
    for fuses, tile, lanes, cache_bytes in itertools.product(
        (False, True), (1, 3), (1, 2), (0, 1 << 20)
    )
    if tile > 1 or not cache_bytes
]


def scheduled(kernel, dependences, options):
    """The schedule; None where isl takes too long to find one."""
    try:
        return schedule_loops(kernel, dependences, options)
    except NoSchedule as refused:
        if refused.reason != "isl finds no order of its loops":
            raise
        return None


def check(seed, monkeypatch):
    # However short the loops are.
    monkeypatch.setattr(loop_scheduler, "_WORTH_THREADS", 0)
    func = random_nest(seed)
    kernel = kernel_domain(func)
    dependences = dependences_of(kernel)
    wanted = interpreted(func, arguments())
    for options in OPTIONS:
        found = scheduled(kernel, dependences, options)
        if found is None:
            continue
        code = CodeOptions(threads=2, lanes=options.lanes)
        results = interpreted(generated_kernel(kernel, found.tree, code), arguments())
        for name, array in wanted.items():
            np.testing.assert_array_equal(results[name], array, f"{name}, {options}")


@pytest.mark.extended
@pytest.mark.parametrize("seed", one_in(4, range(12)))
def test_a_random_nest(seed, monkeypatch):
    check(seed, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 300))
def test_many_random_nests(seed, monkeypatch):
    check(seed, monkeypatch)
