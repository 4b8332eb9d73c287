"""``--pipeline FILE`` means the same to every command that compiles."""

import json
import zipfile

import pytest
from small_models import model, node, rand, value
from thoroughness import one_in
from tuning_sessions import session
from typer.testing import CliRunner

from tvm_ext.check.check import check_model
from tvm_ext.cli.main import app
from tvm_ext.passes.pipeline import PassPipeline, load_pipelines


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def own(tmp_path):
    """A file that leaves ThreadsForLargeRuns out and states a tile."""
    path = tmp_path / "own.toml"
    path.write_text(
        'tile = ["PropagateNan", "VectorMath"]\n'
        '[options.ScheduleKernels.decisions."register tile"]\n'
        "rows_0 = 2\n"
    )
    return path


def test_list_shows_what_a_compilation_would_run(own):
    result = invoke("passes", "list", "--pipeline", own, "-O2", "--json")
    assert result.exit_code == 0, result.output
    ((name, level),) = json.loads(result.stdout)["levels"].items()
    assert name == "own"
    assert level["tile"] == ["PropagateNan", "VectorMath"]
    assert level["graph"] == load_pipelines()["O2"].graph
    assert "O2" in level["summary"]
    text = invoke("passes", "list", "--pipeline", own).stdout
    assert "tile: PropagateNan, VectorMath" in text
    assert "O1:" not in text


@pytest.mark.parametrize(
    "command",
    [
        *(("compile",), ("run",), ("profile",), ("check",), ("tune",), ("passes", "explain")),
        *(("wafer", "explain"), ("passes", "list")),
    ],
)
@pytest.mark.parametrize(
    ("text", "words"),
    one_in(
        3,
        [
            ('tile = ["VectorMaths"]', "nearest known: 'VectorMath'"),
            ("memory = []", "without which no program can be built"),
            ('lower = ["FuseTIR", "LegalizeOps"]', "the pipeline"),
            ("tiles = []", "nearest known: 'tile'"),
            (None, "own.toml"),
        ],
        pytest.mark.extended,
    ),
)
def test_what_cannot_run_is_refused_in_one_line(command, text, words, tiny_model_path, own):
    if text is None:
        own.unlink()
    else:
        own.write_text(text)
    subject = () if command == ("passes", "list") else (tiny_model_path,)
    result = invoke(*command, *subject, "--pipeline", own)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_check_compiles_with_it(tiny_model_path, own):
    arguments = ("check", tiny_model_path, "--pipeline", own, "--json")
    result = invoke(*arguments, "--input-shape", "x=1,3,8,8")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["opt_level"] == "own"


@pytest.mark.extended
def test_what_differs_with_it_is_looked_for_with_it():
    """A tolerance that nothing keeps: the search compiles with the pipeline, and at O0."""
    layer = model(
        [node("MatMul", ["x", "w"], ["a"], name="project"), node("Tanh", ["a"], ["y"])],
        [value("x", [4, 64])],
        [value("y", [4, 64])],
        w=rand(64, 64),
    )
    pipeline = PassPipeline(tile=["PropagateNan", "VectorMath"], summary="mine")
    result = check_model(layer, pipeline=pipeline, rtol=1e-12, bisect=True)
    assert (result.ok, result.opt_level) == (False, "mine")
    assert result.bisection is not None


def test_tune_searches_with_it_and_says_to_compile_with_it(
    tiny_model_path, own, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.records").mkdir()
    asked = {}
    monkeypatch.setattr("tvm_ext.tune_model.tune", lambda *_, **k: asked.update(k) or session(3))
    result = invoke("tune", tiny_model_path, "--pipeline", own)
    assert result.exit_code == 0, result.output
    assert asked["pipeline"] == own
    words = " ".join(result.stdout.replace("\\", " ").split())
    assert words.endswith(f"--pipeline {own}")


@pytest.mark.extended
def test_a_bug_report_holds_it(tiny_model_path, own, tmp_path):
    archive = tmp_path / "report.zip"
    result = invoke("report-bug", tiny_model_path, "-o", archive, "--pipeline", own)
    assert result.exit_code == 0, result.output
    with zipfile.ZipFile(archive) as files:
        assert files.read("pipeline.toml") == own.read_bytes()
        assert json.loads(files.read("facts.json"))["options"]["pipeline"] == str(own)
