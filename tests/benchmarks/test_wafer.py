"""The wafer benchmark: errors by family and evidence, what is left out, and the fit."""

import json
import math
from pathlib import Path

import pytest
import wafer

from tvm_ext.hardware.wafer.published.rows import read_rows

MEASUREMENTS = Path(wafer.__file__).with_name("wafer_measurements.csv")

# Mean absolute error that each family has to stay under.
TARGETS = {
    "1-D reduce": 0.02,
    "GEMM, local tile": 0.03,
    "25-point 3-D stencil": 0.01,
    "5-point 2-D stencil": 0.10,
    "star 2-D stencil": 0.10,
    "sparse times dense CSR": 0.10,
    "sparse times dense CSC": 0.10,
    "sparse times dense COO": 0.10,
    "sparse times dense ELLPACK": 0.10,
}


def test_every_family_is_under_its_target_fitted_and_with_a_size_left_out():
    found = wafer.family_errors(read_rows(MEASUREMENTS))
    assert {one.family for one in found} == set(TARGETS)
    for one in found:
        assert one.fitted.mean < TARGETS[one.family]
        assert one.left_out.mean < TARGETS[one.family]


def test_evidence_is_not_mixed():
    rows = read_rows(MEASUREMENTS)
    found = {(one.family, one.measured_on) for one in wafer.family_errors(rows)}
    assert ("25-point 3-D stencil", "device") in found
    assert ("1-D reduce", "simulator") in found
    assert len(found) == len(TARGETS)


def test_rows_without_a_model_are_counted_with_the_reason():
    rows = read_rows(MEASUREMENTS)
    left_out = wafer.left_out_rows(rows)
    errors = wafer.family_errors(rows)
    assert sum(one.rows for one in left_out) + sum(one.fitted.rows for one in errors) == len(rows)
    assert all(one.reason for one in left_out)


def test_too_few_rows_give_no_fit():
    rows = [row for row in read_rows(MEASUREMENTS) if "reduce" in row.kernel][:1]
    found = wafer.fitted_parameters(rows)
    assert all(isinstance(reason, str) for reason in found.values())
    assert "first_step" in found["reduce"]


@pytest.mark.extended
def test_main_prints_errors_reasons_and_parameters(tmp_path, capsys):
    assert wafer.main([str(MEASUREMENTS), "--json", str(tmp_path / "out.json")]) == 0
    printed = capsys.readouterr().out
    for text in ("25-point 3-D stencil", "whole language model", "sparse.unrolled", "2 T_R is 4"):
        assert text in printed
    written = json.loads((tmp_path / "out.json").read_text())
    assert len(written["errors"]) == len(TARGETS)
    assert all(math.isfinite(one["fitted"]["mean"]) for one in written["errors"])


def test_main_prints_the_fit(capsys):
    assert wafer.main(["--fit"]) == 0
    printed = capsys.readouterr().out
    assert "reduce.first_step" in printed
    assert "errors" not in printed.split("\n", 1)[1]


def test_a_file_that_cannot_be_read_is_one_line(tmp_path, capsys):
    assert wafer.main([str(tmp_path / "none.csv")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
