"""``tvm-ext wafer simulate``: simulated cycles beside the closed form."""

import json
from functools import partial

import commands
import pytest

from tvm_ext.wafer.model_cost import mesh_target
from tvm_ext.wafer.pattern_simulation import PATTERNS, PatternRun, simulate_pattern

as_json = partial(commands.as_json, "wafer", "simulate")
invoke = partial(commands.invoke, "wafer", "simulate")
succeed = partial(commands.succeed, "wafer", "simulate")


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_agrees_with_its_closed_form(name):
    rows = 1 if PATTERNS[name].shape == "line" else 7
    found = simulate_pattern(name, PatternRun(mesh_target("wse2"), rows, 7, 20))
    assert found.modelled_cycles == pytest.approx(found.simulated_cycles, rel=0.05)
    assert found.difference == pytest.approx(found.modelled_cycles / found.simulated_cycles - 1)
    assert found.modelled_word_hops == pytest.approx(found.word_hops)
    assert found.simulated_colours <= found.modelled_colours
    row, column, _, words = found.busiest_link
    assert 0 < words <= found.word_hops
    assert (row < rows, column < 7) == (True, True)


def test_json_has_both_and_the_busiest():
    values = as_json("star", "--columns", 4, "--words", 5)
    # As worked out by hand in the simulator's own test.
    assert values["simulated_cycles"] == 6 + 15
    assert values["busiest_link"] == {"row": 0, "column": 1, "direction": "west", "words": 15}
    assert values["busiest_pe"] == {"row": 0, "column": 0, "words": 15}
    assert values["simulated_word_hops"] == 5 * (1 + 2 + 3)


def test_the_table_compares():
    printed = succeed("two-phase", "--columns", 20, "--words", 30, "--group", 5)
    assert "Closed form" in printed
    assert "Busiest link: from PE (0, " in printed


def test_the_group_counts():
    cycles = [
        json.loads(
            invoke("two-phase", "--columns", 20, "--words", 30, "--group", g, "--json").stdout
        )["simulated_cycles"]
        for g in (2, 5)
    ]
    assert cycles[0] != cycles[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trea", "--columns", 4, "--words", 5), "did you mean 'tree'?"),
        (("tree", "--columns", 1, "--words", 5), "sends nothing"),
        (("tree", "--rows", 2, "--columns", 4, "--words", 5), "runs on a line and 2 rows"),
        (("shift", "--rows", 2, "--columns", 1, "--words", 5), "runs along a row and 1 columns"),
        (("transpose", "--rows", 2, "--columns", 4, "--words", 5), "as many rows as columns"),
        (("tree", "--columns", 4, "--words", 5, "--group", 2), "--group was given for 'tree'"),
        (("tree", "--columns", 999, "--words", 5), "rectangle: 1x999 PEs, and 'wse2' has 994x750"),
        (("transpose", "--rows", 30, "--columns", 30, "--words", 5), "colours: 30 routes"),
        (("halo", "--rows", 600, "--columns", 600, "--words", 5), "choose a smaller grid"),
        (("two-phase", "--columns", 4, "--words", 5, "--group", 9), "group is 9"),
        (("tree", "--columns", 4, "--words", 5, "--target", "avx2"), "is not a mesh"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
