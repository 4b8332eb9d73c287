"""Closed forms agree with the simulator, which does not know them, within 5 %."""

import pytest
from communication_cases import PatternCase, random_case

from tvm_ext.hardware.wafer.simulator.engine import simulate

FAST = range(45)
"""Three of each family."""


def check(case: PatternCase) -> None:
    result = simulate(case.mesh, case.program())
    assert case.form.cycles == pytest.approx(result.cycles, rel=0.05), case.text
    # What the routes decide, the closed forms have to know exactly.
    hops = case.form.energy_word_hops * case.lines
    assert result.link_wavelets.sum() == pytest.approx(hops), case.text
    assert (result.link_wavelets > 0).sum() == case.form.links * case.lines, case.text
    assert result.colours <= case.form.colours, case.text
    busiest = max(result.sent_words.max(), result.received_words.max(), result.link_wavelets.max())
    assert busiest <= case.form.contention_words, case.text


@pytest.mark.extended
@pytest.mark.parametrize("seed", FAST)
def test_form_and_simulator_agree(seed):
    check(random_case(seed))


@pytest.mark.slow
def test_two_hundred_forms_and_the_simulator_agree():
    for seed in range(200):
        check(random_case(seed))
