"""``tvm-ext tune`` and ``tvm-ext rpc-server``: what they print, and one line where they refuse."""

import json

import pytest
import tvm
from commands import invoke, refused, succeed
from tuning_sessions import session

from tvm_ext.cli.tune import parse_duration
from tvm_ext.errors import InputError
from tvm_ext.tuning.cuda import presence as gpu_presence
from tvm_ext.tuning.logs.trial_log import read_trials


@pytest.fixture(scope="module", autouse=True)
def workers(worker_stock):
    with worker_stock.lent():
        yield


@pytest.fixture(scope="module")
def tuned(tiny_model_path, tmp_path_factory):
    """The folder of a small session, and what it printed."""
    folder = tmp_path_factory.mktemp("tuned") / "records"
    arguments = ("--effort", "quick", "--cost-model", "random", "--input-shape", "x=1,3,8,8")
    result = invoke(
        "tune", tiny_model_path, "-o", folder, *arguments, "--trials", 3, "--seed", 3, "--json"
    )
    assert result.exit_code == 0, result.output
    return folder, result


def test_json(tuned):
    folder, result = tuned
    found = json.loads(result.stdout)
    assert found["facts"]["command"].startswith("tvm-ext")
    assert found["facts"]["CPU"].endswith(("core", "cores"))
    assert found["versions"]["tvm"] == tvm.__version__
    assert found["report_file"] == str(folder / "report.html")
    assert [key for key, value in found.items() if value == 3]
    trials = [t for t in read_trials(folder).trials if t.purpose == "search"]
    assert len(trials) == 3
    assert {trial.seed for trial in trials} == {3}
    assert trials[0].kernel in result.stdout


def test_the_report_is_a_page(tuned):
    folder, _ = tuned
    page = (folder / "report.html").read_text("utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "quick" in page
    assert read_trials(folder).trials[0].kernel_name in page


@pytest.mark.extended
def test_compiling_with_what_was_found(tuned, tiny_model_path):
    folder, _ = tuned
    arguments = ("compile", tiny_model_path, "--records", folder, "--require-records", "--json")
    kernels = json.loads(succeed(*arguments, "--input-shape", "x=1,3,8,8"))["report"]["kernels"]
    assert {kernel["tuned"] for kernel in kernels} == {"hit"}


@pytest.mark.extended
def test_records_that_are_required_and_missing(tuned, tiny_model_path):
    """For other sizes there are none; without the option that is no error."""
    folder, _ = tuned
    arguments = ("compile", tiny_model_path, "--records", folder, "--input-shape", "x=2,3,8,8")
    line = refused(*arguments, "--require-records")
    assert "have no record" in line
    assert "tvm-ext tune" in line
    succeed(*arguments, "-q")


@pytest.mark.extended
def test_folders_of_records_that_are_none(tiny_model_path, tmp_path):
    line = refused("compile", tiny_model_path, "--records", tmp_path / "missing")
    assert "no folder of records" in line
    assert "holds no records" in refused("compile", tiny_model_path, "--records", tmp_path)


def test_the_same_command_again_tries_nothing_again(tiny_model_path, tuned):
    folder, _ = tuned
    result = invoke(
        "tune", tiny_model_path, "-o", folder, "--effort", "quick", "--cost-model", "random",
        "--trials", 3, "--input-shape", "x=1,3,8,8", "--report", folder / "again.html",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "again.html" in "".join(result.stdout.split())
    assert (folder / "again.html").is_file()
    assert len([t for t in read_trials(folder).trials if t.purpose == "search"]) == 3


def test_the_summary_says_how_to_compile(tiny_model_path, tmp_path, monkeypatch):
    """With the options that the records belong to."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.records").mkdir()
    monkeypatch.setattr("tvm_ext.tune_model.tune", lambda *_, **options: session(3))
    options = ("--input-shape", "x=1,3,8,8", "--opt-level", "O2", "--threads", "3")
    words = " ".join(succeed("tune", tiny_model_path, *options).replace("\\", " ").split())
    assert words.endswith(
        f"tvm-ext compile {tiny_model_path} --records records {' '.join(options)}"
    )
    assert (tmp_path / "tiny.records" / "report.html").is_file()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--time-budget", "soon"), "--time-budget 'soon' is not a length of time"),
        (("--time-budget", "0s"), "expected for example 90s, 30m or 1h30m"),
        (("--timeout", "-3"), "--timeout '-3' is not a length of time"),
        (("--rpc-tracker", "127.0.0.1:9190"), "--rpc-tracker and --rpc-key belong together"),
        (("--rpc-key", "mycpu"), "--rpc-tracker and --rpc-key belong together"),
        (("--rpc-tracker", "nowhere", "--rpc-key", "k"), "expected HOST:PORT"),
        (("--effort", "quik"), "unknown effort 'quik'; nearest known: 'quick'"),
        (("--cost-model", "xgbost"), "unknown cost model 'xgbost'"),
        (("--l2", "lukewarm"), "l2 is 'lukewarm'; expected 'cold' or 'warm'"),
        (("--only", "nothing*"), "no kernel or node matches 'nothing*'"),
        (("--skip", "nothing*"), "no kernel or node matches 'nothing*'"),
    ],
)
def test_bad_options(tiny_model_path, tmp_path, options, words):
    folder = tmp_path / "records"
    assert words in refused("tune", tiny_model_path, "-o", folder, *options)
    assert not (folder / "trials.jsonl").exists()
    assert not (folder / "report.html").exists()


@pytest.mark.extended
def test_a_compiled_model(tiny_model_path, tmp_path):
    path = tmp_path / "tiny.tvmx"
    succeed("compile", tiny_model_path, "-o", path, "-q", "-O0")
    assert "is a compiled model; expected an ONNX model" in refused("tune", path)


def test_files_that_are_no_models(tmp_path):
    assert "there is no file" in refused("tune", tmp_path / "missing.onnx", "-o", tmp_path / "r")
    (tmp_path / "text.onnx").write_text("only some words\n" * 20)
    assert "not an ONNX model" in refused("tune", tmp_path / "text.onnx", "-o", tmp_path / "r")


def test_a_file_as_the_folder(tiny_model_path, tmp_path):
    (tmp_path / "file").write_text("mine")
    line = refused("tune", tiny_model_path, "-o", tmp_path / "file", "--effort", "quick")
    assert "choose another with --output" in line
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("30m", 1800),
        ("1h30m", 5400),
        ("1h30m5s", 5405),
        ("1.5h", 5400),
        ("0.5", 0.5),
        (" 2H ", 7200),
    ],
)
def test_lengths_of_time(text, seconds):
    assert parse_duration("--timeout", text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "s", "0", "0h0m", "-1", "1d", "1 h", "1h 30m", "h1", "1e3", "nan", "inf", "٣s"],
)
def test_texts_that_are_none(text):
    with pytest.raises(InputError, match=r"--timeout .* is not a length of time"):
        parse_duration("--timeout", text)


# The command's former name is still taken, and not listed.
@pytest.mark.parametrize("command", ["rpc-server", "worker"])
def test_the_help_of_a_server_warns(command):
    assert " worker " not in invoke("--help").stdout
    result = invoke(command, "--help")
    assert result.exit_code == 0
    words = " ".join(result.stdout.replace("│", " ").split())
    assert "The server executes code that clients send" in words
    assert "without a password" in words
    assert "Whoever can reach it can run any code here" in words


def test_a_server_says_whom_it_serves(monkeypatch):
    """The warning names the address; by default only this machine reaches it."""
    served = []

    def serve(tracker, key, host, port, *_, ready, waiting):
        served.append((tracker, key, host, port))
        waiting()
        ready(9093)

    monkeypatch.setattr("tvm_ext.tuning.rpc_server.serve", serve)
    result = invoke("rpc-server", "--tracker", "127.0.0.1:9190", "--key", "k")
    assert result.exit_code == 0, result.output
    assert "every program on this machine" in result.stderr
    assert "no tracker answers at 127.0.0.1:9190 yet" in result.stderr
    assert "serving 'k' on 127.0.0.1:9093" in result.stdout
    result = invoke("rpc-server", "--tracker", "127.0.0.1:9190", "--key", "k", "--host", "0.0.0.0")
    assert "listening on 0.0.0.0: everyone who reaches this address" in result.stderr
    assert [host for _, _, host, _ in served] == ["127.0.0.1", "0.0.0.0"]


def test_no_gpu_to_measure_on(tiny_model_path, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_presence, "_asked", lambda address: gpu_presence.CudaDeviceFacts(False))
    for target in ("cuda", "nvidia-h200"):
        folder = tmp_path / target
        line = refused("tune", tiny_model_path, "--target", target, "-o", folder)
        assert "there is no CUDA device here" in line
        assert "--rpc-tracker" in line
        assert not folder.exists()
