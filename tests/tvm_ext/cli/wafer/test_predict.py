"""``tvm-ext wafer predict``: what it prints for people and for programs, and what it refuses."""

import json
from functools import partial

import commands
import pytest

ROWS = """\
id,arch,kernel,M,vector_length,parameters,grid_rows,grid_cols,value,unit
r1,WSE-2,"1-D reduce, two-phase",,4096,"{""group_size"": 4}",1,512,9421,cycles
r2,WSE-2,"1-D reduce, two-phase",,4096,"{""group_size"": 8}",1,512,,cycles
r3,WSE-2,LLaMA3-8B prefill,,,,480,480,20320.6,token/s per request
r4,WSE-2,"25-point stencil, 1000 steps",,500,,9999,9999,,s per 1000 steps
"""


as_json = partial(commands.as_json, "wafer")
invoke = partial(commands.invoke, "wafer")
succeed = partial(commands.succeed, "wafer")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(ROWS, encoding="utf-8")
    return path


def test_json_has_every_row_in_order(table):
    first, second, third, fourth = as_json("predict", table)
    assert (first["id"], first["family"], first["unit"]) == ("r1", "reduce", "cycles")
    assert first["covered"] is True
    assert first["reason"] == ""
    assert first["predicted"] == pytest.approx(9421, rel=1e-3)
    assert first["error"] == pytest.approx(first["predicted"] / 9421 - 1)
    assert second["predicted"] == pytest.approx(9117, rel=1e-3)
    assert second["published"] is None
    assert second["error"] is None
    assert (third["covered"], third["predicted"]) == (False, None)
    assert "whole model" in third["reason"]
    assert "996x757" in fourth["reason"]


def test_the_table_has_errors_and_reasons(table):
    printed = succeed("predict", table)
    lines = printed.splitlines()
    (first,) = [line.split() for line in lines if line.lstrip().startswith("r1")]
    assert first[:2] == ["r1", "reduce"]
    assert "9,421" in first
    assert "%" in first
    (second,) = [line for line in lines if line.lstrip().startswith("r2")]
    assert "%" not in second
    text = " ".join(printed.split())
    assert "2 of 4 rows predicted; mean absolute error of the 1 with a published value" in text
    assert "r3: whole language model: " in text
    assert "r4: stencil_25_point: a grid of 9999x9999 PEs" in text


def test_a_table_of_nothing_and_one_of_refusals(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("id,kernel,unit\n")
    assert invoke("predict", path).stdout.strip() == "0 of 0 rows predicted."
    assert json.loads(invoke("predict", path, "--json").stdout) == []
    path.write_text("id,kernel,unit\n\x1b[31mx,weather,cycles\n")
    printed = invoke("predict", path).stdout
    assert "0 of 1 rows predicted." in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize(
    ("line", "said"),
    [("a,k,cycles,many", "error: line 3: 'M' is 'many'"), ("a,k", "error: line 3: 2 cells")],
)
def test_a_bad_line_is_refused_in_one_line(tmp_path, line, said):
    path = tmp_path / "rows.csv"
    path.write_text(f"id,kernel,unit,M\na,k,cycles,\n{line}\n")
    result = invoke("predict", path, "--json")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1


def test_a_file_that_is_not_there_is_refused(tmp_path):
    result = invoke("predict", tmp_path / "none.csv")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_the_group_explains_itself():
    assert "predict" in invoke("--help").stdout
    assert "predict" in invoke().stdout
