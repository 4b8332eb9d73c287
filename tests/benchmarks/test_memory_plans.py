"""The table of memory plans: what it holds, and the exit codes."""

from dataclasses import replace

import memory_plans
import onnx
import planned_peaks
import pytest
import resident_memory
from memory_limits import Limited, limits_table
from planned_peaks import PlannedPeak
from rich.console import Console

ROWS = "lower,upper,size\n0,2,4\n1,3,4\n2,4,2\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "three.csv"
    path.write_text(ROWS)
    return path


def cells(printed, first):
    (line,) = [line for line in printed.splitlines() if line.startswith(f"│ {first} ")]
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_a_file_is_planned_and_named_after_itself(file, capsys):
    assert memory_plans.main([str(file)]) == 0
    row = cells(capsys.readouterr().out, "three")
    assert row[:6] == ["three", "3", "8", "8", "0.0%", "first fit by size"]


def test_a_capacity_that_is_not_met_is_a_failure(file, capsys):
    assert memory_plans.main([str(file), "--capacity", "7", "--seconds", "1"]) == 1
    assert memory_plans.main([str(file), "--capacity", "8"]) == 0


def test_a_file_that_cannot_be_read_is_bad_usage(tmp_path, capsys):
    path = tmp_path / "none.csv"
    assert memory_plans.main([str(path)]) == 2
    assert "cannot be read" in capsys.readouterr().err
    path.write_text("lower,upper\n1,2\n")
    assert memory_plans.main([str(path)]) == 2


def test_one_instance_of_minimalloc_is_chosen(capsys):
    assert memory_plans.main(["--only", "J"]) == 0
    assert cells(capsys.readouterr().out, "J")[:3] == ["J", "409", "966"]


def test_the_table_of_limits_says_what_is_met_and_what_the_least_is(capsys):
    refusal = "small needs 2.00 KiB (2048 bytes) for the values that it computes"
    met = Limited("small", 4096, 3072, 2048, "", 1, 0.021, 0.03, is_equal=True)
    Console(width=120).print(limits_table([met, Limited("small", 4096, 1024, refusal=refusal)]))
    printed = capsys.readouterr().out
    row = [cell.strip() for cell in printed.splitlines()[3].strip("│").split("│")]
    assert row[1:] == ["4.00 KiB", "3.00 KiB", "2.00 KiB", "1", "+2.1 %", "+3.0 %", "yes"]
    assert "refused: 2.00 KiB" in printed


@pytest.mark.extended
def test_resident_memory_stands_beside_what_the_report_says(tmp_path, capsys):
    text = """<ir_version: 10, opset_import: ["" : 20]>
    two (float[n, 64] x) => (float[n, 64] y) { s = Softmax (x)  y = Mul (s, x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "two.onnx")
    (found,) = resident_memory.measured([tmp_path / "two.onnx"])
    assert found.name == "two"
    assert found.said["weights"] == 0
    assert found.total_said is not None
    assert found.peak >= found.ran
    assert resident_memory.table_of([found]).row_count == 1


def test_resident_memory_of_nothing_is_one_line(capsys):
    assert memory_plans.main(["--resident"]) == 2
    assert "expected Linux and models" in capsys.readouterr().err


def test_planned_peaks_stand_beside_those_of_tvm(tmp_path, capsys):
    text = """<ir_version: 10, opset_import: ["" : 20]>
    two (float[n, 64] x) => (float[n, 64] y) { s = Softmax (x)  t = Softmax (s)  y = Mul (t, x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "two.onnx")
    assert memory_plans.main(["--peaks", str(tmp_path / "two.onnx")]) in (0, 1)
    printed = capsys.readouterr().out
    assert cells(printed, "two")[3] == "0.0 %"
    assert "1 of 1 plans are the largest sum" in printed


def test_what_is_asked_of_plans_is_checked():
    good = PlannedPeak("a", bound=100, planned=100, tvm=150, unplanned=300, shares=1)
    assert planned_peaks.verdict([good])[1]
    lines, is_met = planned_peaks.verdict([good, replace(good, planned=200)])
    assert not is_met
    assert lines[:2] == [
        "1 of 2 plans are the largest sum of what is alive at a time.",
        "1 of 2 plans are above that of TVM's planner.",
    ]
    assert not planned_peaks.verdict([replace(good, tvm=101)])[1]
