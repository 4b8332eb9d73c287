"""The command line on bad input: exit code 2, one line on stderr, and no file left behind."""

import os

import numpy as np
import onnx
import pytest
import typer
from commands import invoke, refused, succeed
from onnx import TensorProto, helper

from tvm_ext.cli.main import debug_first
from tvm_ext.errors import TargetError


@pytest.fixture
def folder(tmp_path, tiny_model_path):
    """A folder of files that are not models."""
    content = tiny_model_path.read_bytes()
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "text.onnx").write_text("not a model at all, only some words\n" * 20)
    (tmp_path / "cut.onnx").write_bytes(content[: len(content) // 2])
    (tmp_path / "damaged.tvmx").write_bytes(b"PK\x03\x04" + content)
    (tmp_path / "renamed.onnx").write_bytes(b"PK\x03\x04" + content)
    node = helper.make_node("Mystery", ["x"], ["y"], name="odd", domain="some.where")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("some.where", 1)]
    graph = helper.make_graph([node], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=8), tmp_path / "mystery.onnx")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.onnx", "no such file"),
        ("folder", "is a folder"),
        ("empty.onnx", "holds no graph"),
        ("text.onnx", "not an ONNX model"),
        ("cut.onnx", "not an ONNX model or is truncated"),
        ("mystery.onnx", "Mystery"),
    ],
)
@pytest.mark.parametrize("command", ["compile", "run", "check", "profile"])
def test_what_is_no_model_is_refused(folder, command, name, words):
    before = sorted(os.listdir(folder))
    output = ("-o", folder / "out.tvmx") if command == "compile" else ()
    line = refused(command, folder / name, *output)
    assert words in line
    assert sorted(os.listdir(folder)) == before


@pytest.mark.parametrize("command", ["run", "profile", "passes explain"])
@pytest.mark.parametrize("name", ["damaged.tvmx", "renamed.onnx", "missing.tvmx"])
def test_a_damaged_saved_model_is_refused(folder, command, name):
    assert "cannot load" in refused(*command.split(), folder / name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--target", "avx3"), "nearest known: 'avx2'"),
        (("--target", "no.toml"), "cannot read no.toml"),
        (("--target", "cuda", "--threads", "1"), "leave the threads out"),
        (("--target", "wse2"), "target 'wse2' is a mesh"),
        (("--target", "wse2", "--threads", "1"), "leave the threads out"),
        (("--threads", "0"), "--threads"),
        (("--opt-level", "O4"), "known: O0, O1, O2, O3"),
        (("--disable-pass", "GemmFussion"), "nearest known: 'GemmFusion'"),
        (("--disable-pass", "LegalizeOps"), "cannot be disabled"),
        (("--pass-config", "GemmFusion"), "is not PASS.OPTION=VALUE"),
        (("--pass-config", "GemmFussion.a=1"), "nearest known: 'GemmFusion'"),
        (("--pass-config", "FoldConstant.a=1"), "takes no options"),
        (("--input-shape", "x"), "expected NAME=SIZES"),
        (("--input-shape", "x=1,3:1,8,8"), "'3:1' is not a size"),
        (("--input-shape", "x=1,-3,8,8"), "'-3' is not a size"),
        (("--input-shape", "x=1,3,8"), "give 4 sizes"),
        (("--input-shape", "x=1,3,8,9"), "which is 8 in the model"),
        (("--input-shape", "image=1,3,8,8"), "no input 'image'"),
        (("--input-shape", "x=1,3,8,8", "--input-shape", "x=2,3,8,8"), "given twice"),
        (("--shape", "x"), "No such option"),
    ],
)
@pytest.mark.parametrize("command", ["compile", "run"])
def test_wrong_compile_options_are_refused(tiny_model_path, tmp_path, command, options, words):
    result = {"compile": ("-o", tmp_path / "m.tvmx"), "run": ("--outputs", tmp_path / "o.npz")}
    assert words in refused(command, tiny_model_path, *result[command], *options)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_pass_to_explain_is_refused(tiny_model_path):
    line = refused("passes", "explain", tiny_model_path, "--pass", "GemmFussion")
    assert "nearest known: 'GemmFusion'" in line
    line = refused("passes", "explain", "LayoutPlaning")
    assert "neither a file nor a pass" in line
    assert "nearest known: 'LayoutPlanning'" in line


def never(*arguments, **options):
    raise AssertionError("compiled although the result cannot be written")


@pytest.mark.parametrize("option", ["--output", "--report"])
@pytest.mark.parametrize(
    "name", ["no/such/out.html", "folder.html", "model.html", "file.html/x.html"]
)
def test_paths_are_checked_before_compiling(tiny_model_path, tmp_path, monkeypatch, option, name):
    monkeypatch.setattr("tvm_ext.api.compile", never)
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file.html").touch()
    model = tmp_path / "model.html"
    model.write_bytes(tiny_model_path.read_bytes())
    refused("compile", model, option, tmp_path / name)
    assert model.read_bytes() == tiny_model_path.read_bytes()
    assert len(list(tmp_path.iterdir())) == 3


def test_two_results_in_one_file_are_refused(tiny_model_path, tmp_path):
    path = tmp_path / "both.json"
    assert "would overwrite" in refused("compile", tiny_model_path, "-o", path, "--report", path)


def test_other_report_endings_are_refused(tiny_model_path):
    assert "expected .html or .json" in refused("compile", tiny_model_path, "--report", "r.pdf")


def test_a_dump_folder_that_is_a_file_is_refused(tiny_model_path):
    assert "is a file" in refused("compile", tiny_model_path, "--dump-ir", tiny_model_path)
    assert "is a file" in refused("compile", tiny_model_path, "--dump-ir", tiny_model_path / "a/b")


@pytest.mark.extended
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--inputs", "missing.npz"), "no such file"),
        (("--inputs", "{npz}", "--seed", "1"), "leave one of them out"),
        (("--inputs", "{npz}"), "the model has no input 'z'"),
        (("--size", "N"), "is not DIM=N"),
        (("--size", "N=0"), "is not DIM=N"),
        (("--size", "N=2", "--size", "N=3"), "given twice"),
        (("--size", "M=2"), "no input has a dimension 'M'"),
        (("--fill", "twos"), "--fill"),
    ],
)
def test_wrong_inputs_are_refused(tiny_model_path, tmp_path, options, words):
    npz = tmp_path / "in.npz"
    np.savez(npz, z=np.zeros(3))
    given = [option.format(npz=npz) for option in options]
    assert words in refused("run", tiny_model_path, "--outputs", tmp_path / "o.npz", *given)
    assert os.listdir(tmp_path) == ["in.npz"]


def test_outputs_do_not_overwrite_the_inputs(tiny_model_path, tmp_path):
    npz = tmp_path / "in.npz"
    np.savez(npz, x=np.zeros((1, 3, 8, 8), np.float32))
    assert "overwrite" in refused("run", tiny_model_path, "--inputs", npz, "--outputs", npz)


@pytest.mark.extended
def test_compile_options_do_not_fit_a_saved_model(tiny_model_path, tmp_path):
    saved = tmp_path / "m.tvmx"
    succeed("compile", tiny_model_path, "-q", "-o", saved)
    line = refused("run", saved, "--target", "cpu", "--input-shape", "x=1,3,8,8")
    assert "--target, --input-shape" in line
    assert "compiled model" in refused("compile", saved)
    assert "--against" in refused("check", saved)
    for option in (["--bisect"], ["--all-values"], ["--reduce", saved.with_name("out.onnx")]):
        assert option[0] in refused("check", saved, "--against", tiny_model_path, *option)
    line = refused("check", tiny_model_path, "--against", tiny_model_path)
    assert "not a compiled model" in line


def test_bad_usage_says_where_help_is():
    assert "compile --help'" in refused("compile")
    assert "No such command 'nonsense'" in refused("nonsense")


def test_debug_works_at_both_ends():
    assert debug_first(["compile", "m", "--debug"]) == ["--debug", "compile", "m"]
    assert debug_first(["--debug", "compile"]) == ["--debug", "compile"]
    assert debug_first(["compile", "--", "--debug"]) == ["compile", "--", "--debug"]
    assert debug_first([]) == []


@pytest.mark.parametrize("arguments", [("--debug", "compile", "x"), ("compile", "x", "--debug")])
def test_debug_shows_a_traceback(arguments):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Traceback")
    assert result.stderr.splitlines()[-1].startswith("error: x: no such file")


def raise_from(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr("tvm_ext.hardware.targets.list_targets", fail)


def test_a_defect_has_its_own_exit_code(monkeypatch):
    raise_from(monkeypatch, KeyError("lost\nand gone"))
    result = invoke("targets", "list")
    assert result.exit_code == 3
    assert result.stderr.startswith("error: bug in tvm-ext: ")
    assert "--debug" in result.stderr
    assert "lost" not in result.stderr
    assert result.stderr.count("\n") == 1
    debugged = invoke("targets", "list", "--debug")
    assert debugged.exit_code == 3
    assert "Traceback" in debugged.stderr


def test_an_error_is_one_line_without_escape_sequences(monkeypatch):
    raise_from(monkeypatch, TargetError("first\nsecond \x1b[31mred"))
    assert refused("targets", "list") == "error: first second \\x1b[31mred\n"


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (typer.Abort(), 130), (typer.Exit(1), 1)]
)
def test_exit_codes_of_what_is_not_an_error(monkeypatch, error, code):
    raise_from(monkeypatch, error)
    result = invoke("targets", "list")
    assert result.exit_code == code
    assert "Traceback" not in result.output
