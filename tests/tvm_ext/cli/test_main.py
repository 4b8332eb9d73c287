"""The command line: what each command prints and which files it writes."""

import importlib
import json

import numpy as np
import pytest
from commands import as_json, refused, succeed

import tvm_ext
from tvm_ext.cli.main import app
from tvm_ext.cli.targets import describe_target, unit_of
from tvm_ext.hardware.backend import all_backends
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.report import CompileReport


@pytest.fixture(scope="module")
def compiled_path(tiny_model_path, tmp_path_factory):
    path = tmp_path_factory.mktemp("compiled") / "tiny.tvmx"
    succeed("compile", tiny_model_path, "-o", path, "-q", "--input-shape", "x=2,3,8,8")
    return path


@pytest.fixture(scope="module")
def dynamic_path(tiny_model_path, tmp_path_factory):
    """The model for any batch, compiled."""
    path = tmp_path_factory.mktemp("dynamic") / "tiny.tvmx"
    succeed("compile", tiny_model_path, "-o", path, "-q")
    return path


def test_help_names_every_command():
    text = succeed("--help")
    for command in ("compile", "run", "check", "profile", "passes", "targets"):
        assert command in text
    assert succeed() == text


def test_the_commands_of_our_backends_are_there():
    """They stand in the application as well, so that ``--help`` need not load the backends."""
    groups = {one.name: one.typer_instance for one in app.registered_groups}
    named = {one.name: one.commands for one in all_backends() if one.commands}
    assert named
    for name, commands in named.items():
        module, _, attribute = commands.partition(":")
        assert groups[name] is getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("group", ["passes", "targets"])
def test_a_group_alone_prints_its_help(group):
    assert "list" in succeed(group)


@pytest.mark.extended
@pytest.mark.parametrize(
    "command",
    ["compile", "run", "check", "profile", "passes list", "passes explain", "targets show"],
)
def test_every_command_has_an_example(command):
    assert f"Example: tvm-ext {command}" in succeed(*command.split(), "--help")


def test_version_names_what_matters():
    lines = [line.split() for line in succeed("--version").splitlines()]
    assert [name for name, _ in lines] == ["tvm-ext", "tvm", "onnx", "python"]
    assert lines[0][1] == tvm_ext.__version__


@pytest.mark.extended
def test_compile_prints_the_report_and_saves(tiny_model_path, tmp_path):
    text = succeed("compile", tiny_model_path, "-o", tmp_path / "m.tvmx")
    assert "optimisation O3" in text
    assert "LegalizeOps" in text
    assert "AccumulateInFloat32" not in text
    assert "more passes changed nothing; -v lists them" in text
    assert f"Saved {tmp_path / 'm.tvmx'}" in text
    assert [path.name for path in tmp_path.iterdir()] == ["m.tvmx"]
    assert tvm_ext.load(tmp_path / "m.tvmx").inputs[0].shape == ("N", 3, 8, 8)


@pytest.mark.extended
def test_compile_as_json_follows_its_options(tiny_model_path, tmp_path):
    options = ("--input-shape", "x=1,3,8,8", "-O1", "--threads", "1", "--target", "cpu")
    printed = as_json(
        "compile", tiny_model_path, *options, "--disable-pass", "ConvBnReluFold", "-q"
    )
    assert (printed["output"], printed["report_file"]) == (None, None)
    report = CompileReport.from_json(json.dumps(printed["report"]))
    assert report.opt_level == "O1"
    assert report.inputs == ["x: float32[1, 3, 8, 8]"]
    assert report.target["cores"] == 1
    skipped = [record.name for record in report.passes if record.skipped]
    assert skipped == ["ConvBnReluFold"]


@pytest.mark.extended
def test_quiet_prints_nothing(tiny_model_path):
    assert succeed("compile", tiny_model_path, "-O0", "--quiet") == ""


@pytest.mark.slow
def test_compile_saves_the_report_in_both_forms(tiny_model_path, tmp_path):
    for name, level in (("r.html", "O3"), ("r.json", "O0")):
        succeed("compile", tiny_model_path, "-q", "-O", level, "--report", tmp_path / name)
    assert "</html>" in (tmp_path / "r.html").read_text()
    assert CompileReport.from_json((tmp_path / "r.json").read_text()).model == "tiny"


@pytest.mark.extended
def test_compile_dumps_the_module_after_each_pass(tiny_model_path, tmp_path):
    succeed("compile", tiny_model_path, "-q", "--dump-ir", tmp_path / "new" / "ir")
    names = [path.name for path in (tmp_path / "new" / "ir").iterdir()]
    assert any("ConvBnReluFold" in name for name in names)


def test_run_gives_the_same_from_a_saved_model_and_from_onnx(
    compiled_path, tiny_model_path, tmp_path
):
    x = np.random.default_rng(3).standard_normal((2, 3, 8, 8), np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    given = ("--inputs", tmp_path / "in.npz")
    succeed("run", compiled_path, *given, "--outputs", tmp_path / "a.npz")
    succeed("run", tiny_model_path, *given, "--outputs", tmp_path / "b.npz")
    wanted = tvm_ext.load(compiled_path).run({"x": x})["y"]
    for name in ("a.npz", "b.npz"):
        with np.load(tmp_path / name) as archive:
            assert archive.files == ["y"]
            np.testing.assert_allclose(archive["y"], wanted, rtol=1e-5, atol=1e-5)
    assert len(list(tmp_path.iterdir())) == 3


def test_run_describes_its_outputs(compiled_path):
    printed = as_json("run", compiled_path, "--repeat", 3, "--print-top", 2)
    output = printed["outputs"]["y"]
    assert (output["dtype"], output["shape"]) == ("float32", [2, 4, 8, 8])
    assert 0 <= output["min"] <= output["mean"] <= output["max"]
    assert output["top"][0]["value"] == output["max"] >= output["top"][1]["value"]
    assert len(output["top"][0]["index"]) == 4
    assert printed["timing"]["repeat"] == 3
    assert 0 < printed["timing"]["min_ms"] <= printed["timing"]["median_ms"]


def test_run_prints_a_table(compiled_path):
    text = succeed("run", compiled_path, "--repeat", 2)
    assert "2x4x8x8" in text
    assert "2 timed runs: median" in text


@pytest.mark.extended
def test_run_makes_inputs_up_as_asked(dynamic_path):
    def outputs(*options):
        return as_json("run", dynamic_path, *options)["outputs"]["y"]

    zeros = outputs("--fill", "zeros", "--size", "N=3")
    assert zeros["shape"][0] == 3
    assert zeros != outputs("--fill", "ones", "--size", "N=3")
    assert outputs("--seed", 5) == outputs("--seed", 5) != outputs("--seed", 6)


@pytest.mark.extended
def test_profile_names_kernels_and_onnx_nodes(compiled_path):
    printed = as_json("profile", compiled_path, "--repeat", 2)
    assert printed["run_microseconds"] > 0
    (kernel, *_) = [one for one in printed["kernels"] if "conv1" in one["origins"][0]]
    assert kernel["modelled_microseconds"] > 0
    text = succeed("profile", compiled_path, "--repeat", 2)
    assert "conv1" in text
    assert "modelled, not measured" in text
    assert kernel["kernel"] not in text
    assert kernel["kernel"][-8:] in succeed("profile", compiled_path, "--repeat", 1, "-v")


@pytest.mark.extended
def test_profile_shows_as_many_kernels_as_asked(abs_model_path):
    options = ("--repeat", 2, "--top", 1, "-O0")
    assert len(as_json("profile", abs_model_path, *options)["kernels"]) == 1
    assert "1 more" in succeed("profile", abs_model_path, *options)


@pytest.mark.extended
def test_profile_saves_a_page_and_a_trace(compiled_path, tmp_path):
    page, trace = tmp_path / "p.html", tmp_path / "t.json"
    text = succeed("profile", compiled_path, "--repeat", 1, "--report", page, "--trace", trace)
    assert f"Saved {page}" in text
    assert f"Saved {trace}" in text
    assert page.read_text().lstrip().startswith("<!doctype html>")
    events = json.loads(trace.read_text())["traceEvents"]
    calls = [event for event in events if event["ph"] == "X" and "kernel" in event["args"]]
    printed = as_json("profile", compiled_path, "--repeat", 1, "--report", tmp_path / "p.json")
    assert len(calls) == sum(kernel["calls"] for kernel in printed["kernels"])
    assert set(json.loads((tmp_path / "p.json").read_text())) == set(printed)


def test_profile_refuses_files_before_the_work(compiled_path, tmp_path):
    message = refused("profile", compiled_path, "--report", tmp_path / "p.txt")
    assert "expected .html or .json: rename it" in message
    assert "overwrite" in refused("profile", compiled_path, "--trace", compiled_path)


def test_targets_list_begins_with_this_machine():
    listed = as_json("targets", "list")
    assert listed[0]["name"] == "cpu"
    assert {"avx2", "nvidia-a100"} <= {target["name"] for target in listed}
    assert "avx2" in succeed("targets", "list")


@pytest.mark.extended
@pytest.mark.parametrize("name", ["cpu", "avx2", "cuda"])
def test_targets_show_has_units_and_the_tvm_target(name):
    shown = as_json("targets", "show", name)
    assert shown["memory_gbs"] > 0
    assert shown["peak_flops"]["float32"] > 0
    assert shown["tvm_target"]["kind"] == ("cuda" if name == "cuda" else "llvm")
    text = succeed("targets", "show", name)
    assert "GB/s" in text
    assert "tvm_target" in text
    if name != "cuda":
        assert shown["features"]


def test_targets_show_a_mesh():
    shown = as_json("targets", "show", "wse2")
    assert shown["tvm_target"]["device"].startswith("wse2-")
    assert shown["peak_flops"]["float32"] == pytest.approx(745_500 * 2 * 850e6)
    assert "words/cycle" in succeed("targets", "show", "wse2")


def test_every_number_of_a_target_has_its_unit_or_needs_none():
    counts = {"cores", "fma_units", "sms", "warp_size", "registers_per_block"}
    counts |= {"fp32_lanes_per_sm", "max_threads_per_block"}
    counts |= {"rows", "columns", "fabric_rows", "fabric_columns", "banks", "colours"}
    counts |= {"conflict_factor", "switch_positions"}
    for name in ("cpu", "cuda", "wse2"):
        described = describe_target(resolve_target(name))
        numbers = {key for key, value in described.items() if type(value) in (int, float)}
        assert numbers - counts == {key for key in numbers if unit_of(key)}


@pytest.mark.extended
def test_machines_get_no_colour_codes(tiny_model_path, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert "\x1b" not in succeed("compile", tiny_model_path, "-O0")
    assert "\x1b" not in succeed("passes", "list")
