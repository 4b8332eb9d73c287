"""``tvm-ext bench``: what it prints and refuses."""

import pytest
from commands import as_json, refused, succeed


@pytest.fixture(scope="module")
def compiled_path(tiny_model_path, tmp_path_factory):
    path = tmp_path_factory.mktemp("compiled") / "tiny.tvmx"
    succeed("compile", tiny_model_path, "-o", path, "-q")
    return path


@pytest.mark.extended
def test_figures_of_every_program(compiled_path, tiny_model_path):
    options = ("--count", 12, "--warmup", 0, "--streams", 2, "--threads", 2)
    against = ("--against", "onnxruntime", "--onnx", tiny_model_path)
    printed = as_json("bench", compiled_path, *options, *against)
    assert (printed["streams"], printed["threads_of_a_stream"]) == (2, 1)
    assert [one["program"] for one in printed["programs"]] == ["tvm-ext", "ONNX Runtime"]
    for one in printed["programs"]:
        assert one["runs"] == 12
        assert 0 < one["min_ms"] <= one["p50_ms"] <= one["p90_ms"] <= one["p99_ms"]
        assert one["runs_per_second"] > 0


def test_the_table_fits_a_narrow_terminal(compiled_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    printed = succeed("bench", compiled_path, "--count", 5, "--warmup", 0)
    assert "p99" in printed
    assert all(len(line) <= 80 for line in printed.splitlines())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--against", "onnxruntim"), "nearest known: 'onnxruntime'"),
        (("--against", "onnxruntime"), "name it with --onnx"),
        (("--duration", "0"), "--duration is 0.0; expected more than 0 seconds"),
    ],
)
def test_refusals(compiled_path, options, words):
    assert words in refused("bench", compiled_path, *options)
