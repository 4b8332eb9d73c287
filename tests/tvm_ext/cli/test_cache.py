"""``tvm-ext cache``: what is shown, and what is deleted."""

import json
from pathlib import Path

import onnx
import pytest
from commands import invoke
from rich.cells import cell_len
from small_models import model, node, value

NAME = "n" * 200


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The cache, with the program of one model."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TVM_EXT_CACHE", "on")
    monkeypatch.setenv("TVM_EXT_CACHE_DIR", str(folder))
    path = tmp_path / f"{NAME}.onnx"
    onnx.save(model([node("Relu", ["x"], ["y"])], [value("x", [4])], [value("y", [4])]), path)
    assert invoke("compile", path, "-q", "-o", tmp_path / "m.tvmx").exit_code == 0
    return folder


def test_show(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = invoke("cache", "show").stdout.splitlines()
    assert any("1 in all" in line for line in lines)
    assert max(map(cell_len, lines)) <= 80
    shown = json.loads(invoke("cache", "show", "--json").stdout)
    (entry,) = shown["programs"]
    assert (shown["folder"], shown["limit_bytes"]) == (str(folder), 4 * 2**30)
    assert (entry["model"], entry["target"]) == (NAME, "cpu")
    assert entry["bytes"] == sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.extended
def test_verify_deletes_what_is_damaged(folder):
    assert invoke("cache", "verify").exit_code == 0
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:-100])
    shown = json.loads(invoke("cache", "show", "--json").stdout)["programs"]
    assert [entry["model"] for entry in shown] == [None]
    found = invoke("cache", "verify")
    assert found.exit_code == 1
    assert "Deleted 1 program" in found.stdout
    assert not any(folder.iterdir())
    assert invoke("cache", "verify").exit_code == 0


def test_clear(folder):
    assert "Deleted 1 program" in invoke("cache", "clear").stdout
    assert not any(folder.iterdir())
    assert "no programs" in invoke("cache", "show").stdout


@pytest.mark.extended
def test_a_cache_that_is_off(folder, monkeypatch):
    monkeypatch.setenv("TVM_EXT_CACHE", "off")
    for command in ("show", "clear", "verify"):
        found = invoke("cache", command)
        assert (found.exit_code, found.stdout) == (0, "The cache is turned off (TVM_EXT_CACHE).\n")
    assert json.loads(invoke("cache", "clear", "--json").stdout)["folder"] is None
    assert any(folder.iterdir())
