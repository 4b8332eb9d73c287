"""The models of published measurements: errors, fits, and what they refuse and why."""

from dataclasses import replace
from pathlib import Path

import pytest

from tvm_ext.configs.errors import ConfigError, NotApplicable
from tvm_ext.configs.loader import check_config
from tvm_ext.hardware.wafer.published.families import (
    FAMILIES,
    Calibration,
    calibration,
    covered_rows,
    fitted,
    leave_one_size_out,
    predict_rows,
)
from tvm_ext.hardware.wafer.published.family import Terms, fit_terms
from tvm_ext.hardware.wafer.published.matmuls import GEMM_TILE
from tvm_ext.hardware.wafer.published.rows import PublishedRow, read_rows
from tvm_ext.hardware.wafer.published.stencils import block_cells

MEASUREMENTS = Path(__file__).parents[4] / "benchmarks" / "wafer_measurements.csv"
BY_NAME = {family.name: family for family in FAMILIES}

# Mean and largest error that is accepted, with the parameters as they are and with one size left
# out; how many rows the file has.
ACCEPTED = {
    "reduce": (6, 0.001, 0.001, 0.001),
    "gemm_tile": (6, 0.01, 0.02, 0.02),
    "stencil_25_point": (10, 0.0025, 0.007, 0.005),
    "stencil_5_point": (20, 0.015, 0.03, 0.03),
    "star_stencil": (4, 0.002, 0.003, 0.005),
    "sparse": (64, 0.03, 0.19, 0.03),
}


@pytest.fixture(scope="module")
def published():
    return read_rows(MEASUREMENTS)


def question(kernel, **columns):
    columns = {"arch": "WSE-2", "unit": "cycles", "dtype": "fp32", **columns}
    return PublishedRow(2, "q", kernel, **columns)


def answer(kernel, **columns):
    (found,) = predict_rows([question(kernel, **columns)])
    return found


def cycles(kernel, **columns):
    found = answer(kernel, **columns)
    assert found.covered, found.reason
    return found.predicted


def reason(kernel, **columns):
    found = answer(kernel, **columns)
    assert not found.covered
    assert found.predicted is None
    return found.reason


@pytest.mark.parametrize("name", BY_NAME)
def test_errors_are_within_what_is_accepted(published, name):
    rows, mean, largest, left_out = ACCEPTED[name]
    found = predict_rows(covered_rows(published, BY_NAME[name]))
    errors = [abs(one.error) for one in found]
    assert len(errors) == rows
    assert sum(errors) / len(errors) < mean
    assert max(errors) < largest
    validated = [abs(one.error) for one in leave_one_size_out(published, BY_NAME[name])]
    assert sum(validated) / len(validated) < left_out


@pytest.mark.parametrize("name", BY_NAME)
def test_the_parameters_are_what_the_published_rows_give(published, name):
    assert fitted(published, BY_NAME[name]) == pytest.approx(
        calibration().values(BY_NAME[name]), rel=2e-4
    )


def test_a_fit_does_not_see_the_size_that_is_left_out(published):
    """A value a hundred times too small spoils the fit of the other sizes, and not its own."""
    rows = covered_rows(published, GEMM_TILE)
    (spoilt,) = [row for row in rows if row.m == 16]
    others = [row for row in rows if row is not spoilt]
    wrong = [*others, replace(spoilt, value=spoilt.value / 100)]
    honest = {one.row.id: one.predicted for one in leave_one_size_out(rows, GEMM_TILE)}
    found = {one.row.id: one.predicted for one in leave_one_size_out(wrong, GEMM_TILE)}
    assert found[spoilt.id] == pytest.approx(honest[spoilt.id])
    assert any(found[row.id] != pytest.approx(honest[row.id], rel=0.1) for row in others)


def test_every_row_has_a_prediction_or_a_reason(published):
    found = predict_rows(published)
    assert [one.row.id for one in found] == [row.id for row in published]
    assert all(one.covered != bool(one.reason) for one in found)
    left_out = {one.family for one in found if not one.covered}
    assert left_out == {
        "whole language model",
        "multigrid",
        "host copy",
        "SUMMA",
        "single vector instruction",
    }


def test_a_prediction_needs_no_value_and_does_not_change_with_it(published):
    asked = [replace(row, value=None, value_min=None, value_max=None) for row in published]
    found = predict_rows(asked)
    assert [one.predicted for one in found] == [one.predicted for one in predict_rows(published)]
    assert all(one.error is None for one in found)


def test_a_simulated_summa_is_far_from_the_local_tile(published):
    """The number in the reason for leaving SUMMA out: four steps of a 14x14x14 tile."""
    (summa,) = [row for row in published if row.kernel.startswith("SUMMA GEMM, compute")]
    tile = {"tile": {"M": 14, "N": 14, "K": 56}}
    found = cycles("GEMM, local", parameters=tile, grid_rows=1, grid_cols=1)
    assert found / summa.value == pytest.approx(0.86, abs=0.005)
    (one,) = predict_rows([summa])
    assert "14 %" in one.reason


TWO_PHASE = {"vector_length": 4096, "grid_rows": 1, "grid_cols": 512}


def test_a_two_phase_reduce_by_its_closed_form():
    values = calibration().values(BY_NAME["reduce"])
    first, start = values["first_step"], values["start"]
    assert first == pytest.approx(4, abs=0.01)
    found = cycles("1-D reduce, two-phase, S=8", **TWO_PHASE)
    assert found == pytest.approx(2 * 4096 + 511 + 7 * first + 63 * 5 + start)
    # 512 = 17 * 30 + 2: eighteen groups.
    ragged = cycles("1-d Reduce (two phase)", **TWO_PHASE, parameters={"group_size": 30})
    assert ragged == pytest.approx(2 * 4096 + 511 + 29 * first + 17 * 5 + start)


def test_one_group_is_a_chain_and_receives_the_vector_once():
    values = calibration().values(BY_NAME["reduce"])
    whole = cycles("1-D reduce, two-phase, S=512", **TWO_PHASE)
    assert whole == pytest.approx(4096 + 511 + 511 * values["first_step"] + values["start"])
    assert cycles("1-D reduce, two-phase, S=600", **TWO_PHASE) == whole
    tall = {"vector_length": 4096, "grid_rows": 512, "grid_cols": 1}
    assert cycles("1-D reduce, two-phase, S=512", **tall) == whole


def test_half_precision_is_half_the_words():
    full = cycles("1-D reduce, two-phase, S=8", **TWO_PHASE)
    half = cycles("1-D reduce, two-phase, S=8", **TWO_PHASE, dtype="fp16")
    assert full - half == pytest.approx(4096)


def test_reduces_of_one_phase_are_predicted_by_their_closed_forms():
    start = calibration().values(BY_NAME["reduce"])["start"]
    assert cycles("1-D reduce, chain", **TWO_PHASE) == pytest.approx(4096 + 6 * 511 + start)
    assert cycles("1-D reduce, tree", **TWO_PHASE) == pytest.approx(9 * 4096 + 511 + 9 * 5 + start)
    star = cycles("1-D reduce, star", **TWO_PHASE)
    assert star == pytest.approx(511 * 4096 + 6 + start)


def test_reduces_that_are_refused():
    assert "names no algorithm" in reason("1-D reduce, ring", **TWO_PHASE)
    assert "no group size" in reason("1-D reduce, two-phase", **TWO_PHASE)
    grid = {"vector_length": 64, "grid_rows": 4, "grid_cols": 4}
    assert "4x4" in reason("reduce, two-phase, S=2", **grid)
    assert "vector_length" in reason("reduce, two-phase, S=2", grid_rows=1, grid_cols=4)
    assert "belongs to no family" in reason("1-D all-reduce, ring", **TWO_PHASE)


def test_grids_beyond_the_fabric_are_refused_with_its_limit():
    long = {"vector_length": 4096, "grid_rows": 1, "grid_cols": 1100}
    assert "1x1100 PEs is larger than the fabric of wse2, 996x757" in reason(
        "1-D reduce, chain", **long
    )
    assert cycles("1-D reduce, chain", **long, arch="WSE-3") > 0
    stencil = "25-point 3-D stencil, 1000 time steps"
    wide = {"vector_length": 100, "unit": "s per 1000 steps"}
    assert "996x757" in reason(stencil, **wide, grid_rows=900, grid_cols=900)
    for rows, columns in ((994, 755), (755, 994)):
        assert cycles(stencil, **wide, grid_rows=rows, grid_cols=columns) > 0


def test_an_unknown_architecture_or_unit_is_refused():
    assert "WSE-9" in reason("1-D reduce, chain", **TWO_PHASE, arch="WSE-9")
    assert "has no description" in reason("1-D reduce, chain", **TWO_PHASE, arch="")
    assert "'Gcell/s' is no time" in reason("1-D reduce, chain", **TWO_PHASE, unit="Gcell/s")
    assert "'int' is not known" in reason("1-D reduce, chain", **TWO_PHASE, dtype="int")


def test_a_gemm_tile_from_its_sizes_is_the_stated_one():
    sizes = {"m": 768, "n": 64, "k": 768, "grid_rows": 12, "grid_cols": 16}
    stated = {"tile": {"M": 64, "K": 48, "N": 64}}
    kernel = "dense GEMM, local compute phase only"
    assert cycles(kernel, **sizes) == cycles(kernel, **sizes, parameters=stated)
    assert answer(kernel, **sizes).of == "mean over PEs"


def test_gemms_that_are_refused():
    sizes = {"m": 768, "n": 64, "k": 768, "grid_rows": 12, "grid_cols": 16}
    assert "only the local phase" in reason("dense GEMM", **sizes)
    assert "fp16" in reason("GEMM, local tile", **sizes, dtype="fp16")
    assert "49,152" in reason("GEMM, local tile", **{**sizes, "grid_rows": 1})
    assert "neither a tile" in reason("GEMM, local tile", grid_rows=1, grid_cols=1)
    assert "no grid_rows" in reason("GEMM, local tile", m=8, n=8, k=8)


@pytest.mark.parametrize(
    ("cells", "block"), [(100, 100), (300, 300), (400, 400), (700, 350), (1000, 334), (401, 201)]
)
def test_columns_are_exchanged_in_few_equal_blocks(cells, block):
    assert block_cells(cells) == block


def test_the_unit_of_a_stencil_counts_its_own_steps():
    kernel = "25-point 3-D stencil (wave equation), 1000 time steps"
    columns = {"vector_length": 500, "grid_rows": 400, "grid_cols": 400}
    run = cycles(kernel, **columns, unit="s per 1000 steps", clock_mhz=850.0)
    assert cycles(kernel, **columns, unit="s per 500 steps") == pytest.approx(run / 2)
    assert cycles(kernel, **columns) == pytest.approx(run * 850e6)
    assert cycles(kernel, **columns, unit="ms", clock_mhz=1700.0) == pytest.approx(run * 500)


def test_the_launch_of_a_stencil_is_paid_once_a_run():
    columns = {"vector_length": 500, "grid_rows": 400, "grid_cols": 400, "unit": "cycles per step"}
    few = cycles("25-point stencil, 1000 steps", **columns)
    many = cycles("25-point stencil, 100,000 steps", **columns)
    launch = calibration().values(BY_NAME["stencil_25_point"])["launch"] * 800
    assert few - many == pytest.approx(launch * (1 / 1000 - 1 / 100_000))


FIELD = {"m": 256, "n": 256, "arch": "WSE-2 or WSE-3 (not recorded)"}
SERIES_A = "5-point 2-D stencil, 1 iteration, strong scaling A"


def test_series_differ_in_the_words_from_neighbours_alone():
    values = calibration().values(BY_NAME["stencil_5_point"])
    grid = {"grid_rows": 8, "grid_cols": 8}
    a = cycles(SERIES_A, **FIELD, **grid)
    b = cycles(SERIES_A.replace("scaling A", "scaling B"), **FIELD, **grid)
    assert b - a == pytest.approx(4 * 32 * (values["word_B"] - values["word_A"]))
    assert cycles("five-point stencil", **FIELD, **grid) == a


def test_a_field_that_does_not_divide_costs_its_padding():
    values = calibration().values(BY_NAME["stencil_5_point"])
    whole = cycles(SERIES_A, **{**FIELD, "m": 260, "n": 260}, grid_rows=20, grid_cols=20)
    padded = cycles(SERIES_A, **FIELD, grid_rows=20, grid_cols=20)
    assert padded - whole == pytest.approx(values["padding"])


def test_a_line_of_processing_elements_has_fewer_neighbours():
    values = calibration().values(BY_NAME["stencil_5_point"])
    columns = {"m": 8, "arch": "WSE-2"}
    two = cycles(SERIES_A, **columns, n=16, grid_rows=1, grid_cols=2)
    three = cycles(SERIES_A, **columns, n=24, grid_rows=1, grid_cols=3)
    assert three - two == pytest.approx(8 * values["word_A"])


def test_stencils_that_are_refused():
    assert "3 iterations" in reason(
        "5-point stencil, 3 iterations", **FIELD, grid_rows=8, grid_cols=8
    )
    assert "bytes" in reason(SERIES_A, **FIELD, grid_rows=2, grid_cols=2)
    assert "no M and N" in reason(SERIES_A, grid_rows=2, grid_cols=2)
    assert "box stencil" in reason("box 2-D radius 1 stencil", **FIELD, grid_rows=2, grid_cols=2)


STAR = {"m": 16, "n": 16, "grid_rows": 2, "grid_cols": 2, "arch": "WSE-3"}


def test_a_star_costs_its_points_and_its_iterations():
    point = calibration().values(BY_NAME["star_stencil"])["point"]
    kernel = "star 2-D radius {} stencil, {} iteration(s)"
    two, three = (cycles(kernel.format(radius, 1), **STAR) for radius in (2, 3))
    assert three - two == pytest.approx(4 * point)
    assert cycles(kernel.format(3, 5), **STAR) == pytest.approx(5 * three)
    per_step = cycles(kernel.format(3, 5), **STAR, unit="cycles per iteration")
    assert per_step == pytest.approx(three)


def test_stars_that_are_refused():
    kernel = "star 2-D radius 1 stencil, 1 iteration(s)"
    assert "16x16 cells a PE" in reason(kernel, **{**STAR, "m": 32, "n": 32})
    assert "4x4 PEs" in reason(kernel, **{**STAR, "grid_rows": 4, "grid_cols": 4})
    assert "radius 4" in reason(kernel.replace("radius 1", "radius 4"), **STAR)
    assert "no radius" in reason("star stencil", **STAR)


def test_a_fit_that_the_rows_do_not_determine_is_refused():
    alike = [(Terms({"a": 1, "b": 2}), 5.0), (Terms({"a": 2, "b": 4}), 10.0)]
    with pytest.raises(NotApplicable, match="too alike"):
        fit_terms(alike, ["a", "b"])
    with pytest.raises(NotApplicable, match="1 rows"):
        fit_terms(alike[:1], ["a", "b"])
    with pytest.raises(NotApplicable):
        fit_terms([(Terms({"a": 1}), 5.0), (Terms({"a": 2}), 9.0)], ["a", "b"])


def test_a_fit_finds_the_parameters_it_was_made_of():
    made = [
        (Terms({"a": a, "b": b * 1e6}, known=7.0), 7 + 3 * a + 5e6 * b)
        for a, b in ((1, 4), (2, 1), (5, 3))
    ]
    assert fit_terms(made, ["a", "b"]) == pytest.approx({"a": 3, "b": 5})


def test_a_calibration_with_other_parameters_is_refused():
    data = calibration().model_dump()
    del data["reduce"]["start"]
    short = check_config(data, Calibration, "calibration.toml")
    with pytest.raises(ConfigError, match="missing key 'start'"):
        short.values(BY_NAME["reduce"])
    data["reduce"]["begin"] = data["gemm_tile"]["element"]
    with pytest.raises(ConfigError, match="unknown key 'begin'"):
        check_config(data, Calibration, "calibration.toml").values(BY_NAME["reduce"])
    data["gemm_tile"]["element"]["value"] = "fast"
    with pytest.raises(ConfigError, match="'fast'"):
        check_config(data, Calibration, "calibration.toml")
