"""The table of memory plans: what it holds, and the exit codes."""

import memory_plans
import onnx
import pytest
from small_models import mlp

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


def test_limits_of_a_model_that_needs_its_own_peak_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    path = tmp_path / "small.onnx"
    onnx.save(mlp(2), path)
    assert memory_plans.main(["--limits", "100,1", str(path)]) == 0
    printed = capsys.readouterr()
    rows = [line for line in printed.out.splitlines() if line.startswith("│ small ")]
    assert len(rows) == 2, printed
    met, refused = ([cell.strip() for cell in row.strip("│").split("│")] for row in rows)
    assert met[1] == met[2] == met[3]
    assert met[-1] == "yes"
    assert refused[3] == f"refused: {met[3]}"
