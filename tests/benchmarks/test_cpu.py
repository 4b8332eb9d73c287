"""The command line: tables, JSON, figure and exit code of a small run."""

import json
import sys

import cpu
import pytest
from kernel_models import Scale, kernel_models
from peers import PEERS, PeerError
from results import OURS_NAME
from roofline import MachinePeaks

from tvm_ext.hardware.cpu.measured_peaks import copy_peak, fma_peak

QUICK = ["--seconds", "0.001", "--threads", "1"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Peaks and large tensors take seconds and hundreds of megabytes."""
    peaks = MachinePeaks(1, 100.0, 100.0, 10.0, 10.0)
    for module in ("cpu", "roofline"):
        monkeypatch.setattr(f"{module}.measure_peaks", lambda machine: peaks)
    monkeypatch.setattr(cpu, "large_bytes", lambda machine: 1 << 14)
    monkeypatch.setattr(cpu, "kernel_models", lambda scale: kernel_models(Scale(1 << 14, 8)))
    monkeypatch.setattr(cpu, "copy_peak", lambda machine: copy_peak(machine, 1 << 14))
    monkeypatch.setattr(cpu, "fma_peak", fma_peak)


def test_models_in_a_table_and_in_json(tiny_model_path, tmp_path, capsys):
    out = tmp_path / "out.json"
    arguments = [str(tiny_model_path), "--input-shape", "x=1,3,8,8", "--json", str(out)]
    assert cpu.main([*arguments, "--roofline", "--peers", "onnxruntime", *QUICK]) == 0
    printed = capsys.readouterr().out
    assert "tiny" in printed
    assert "kernels by time above their floor" in printed
    data = json.loads(out.read_text())
    assert data["threads"] == 1
    assert data["versions"]["onnxruntime"] == PEERS["onnxruntime"].version()
    assert data["machine"]["vector_bits"] >= 128
    (model,) = data["models"]
    assert set(model["programs"]) == {"tvm_ext", "onnxruntime"}
    assert model["ratios"]["onnxruntime"] == pytest.approx(
        model["programs"]["onnxruntime"]["milliseconds"]
        / model["programs"]["tvm_ext"]["milliseconds"]
    )
    assert data["geometric_means"]["models"]["onnxruntime"] == pytest.approx(
        model["ratios"]["onnxruntime"]
    )
    assert sum(row["share"] for row in model["roofline"]) == pytest.approx(1.0)


@pytest.mark.slow
def test_kernels_beside_the_peaks(tmp_path, capsys):
    out = tmp_path / "out.json"
    arguments = ["--kernels", "conv3x3_7x7_512", "chain_cheap", "--peers", "onnxruntime"]
    assert cpu.main([*arguments, "--json", str(out), *QUICK]) == 0
    printed = capsys.readouterr().out
    assert "conv kernels" in printed
    assert "unfused" in printed
    conv, chain = json.loads(out.read_text())["kernels"]
    assert (conv["kernel"]["limit"], chain["kernel"]["limit"]) == ("flops", "bytes")
    assert set(conv["programs"]) == {"tvm_ext", "onnxruntime"}
    assert set(chain["ratios"]) == {"unfused", "onnxruntime"}


@pytest.mark.extended
def test_a_missing_peer_is_a_dash_and_a_reason(tiny_model_path, monkeypatch, capsys):
    def absent() -> str:
        raise PeerError("not installed; expected the package: pip install openvino")

    monkeypatch.setattr(PEERS["openvino"], "version", absent)
    assert cpu.main([str(tiny_model_path), "--peers", "onnxruntime,openvino", *QUICK]) == 0
    printed = capsys.readouterr().out
    assert "OpenVINO (not installed)" in printed
    assert "OpenVINO, tiny: not installed; expected the package" in printed


@pytest.mark.slow
def test_a_wrong_answer_is_flagged_and_fails(tiny_model_path, capsys):
    arguments = [str(tiny_model_path), "--peers", "onnxruntime", "--tolerance", "0", *QUICK]
    code = cpu.main(arguments)
    printed = capsys.readouterr().out
    assert (code, "! differs by" in printed) in {(1, True), (0, False)}
    assert cpu.main([*arguments, "--tolerance", "-1"]) == 1
    assert "tvm-ext, tiny: ! differs by" in capsys.readouterr().out


@pytest.mark.extended
def test_a_model_that_does_not_compile_fails(tmp_path, tiny_model_path, capsys):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    out = tmp_path / "out.json"
    assert cpu.main([str(broken), str(tiny_model_path), "--json", str(out), *QUICK]) == 1
    assert "is not an ONNX model" in capsys.readouterr().out
    first, second = json.loads(out.read_text())["models"]
    assert OURS_NAME in first["reasons"]
    assert OURS_NAME in second["programs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to measure"),
        (["--kernels", "nonsense"], "no kernel and no group"),
        (["--kernels", "--peers", "onnxruntim"], "nearest known: 'onnxruntime'"),
        (["--kernels", "--threads", "0"], "--threads is 0"),
        (["--kernels", "--threads", "100000"], "the cores of this machine"),
        (["--kernels", "--seconds", "0"], "--seconds is 0.0"),
        (["--kernels", "--json", "/nonexistent/out.json"], "does not exist"),
        (["--models", "nowhere.toml"], "cannot read"),
    ],
)
def test_bad_usage_is_one_line(arguments, message, capsys):
    assert cpu.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cpu.py: error: ")
    assert message in line


def test_a_figure_without_matplotlib_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cpu.main(["--kernels", "add", "--plot", str(tmp_path / "f.png"), *QUICK]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err


@pytest.mark.slow
def test_figure_of_models_and_kernels(tiny_model_path, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "figure.png"
    arguments = [str(tiny_model_path), "--kernels", "relu", "conv3x3_7x7_512", "transpose_heads"]
    assert cpu.main([*arguments, "--peers", "onnxruntime", "--plot", str(path), *QUICK]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_help_names_the_kernels_and_the_file_format(capsys):
    with pytest.raises(SystemExit, match="0"):
        cpu.main(["--help"])
    printed = capsys.readouterr().out
    assert "[[model]]" in printed
    assert "conv3x3_56x56_64_relu" in printed


def test_floor_is_the_larger_of_the_two_limits():
    peaks = MachinePeaks(threads=2, core_gflops=50.0, gflops=100.0, core_gbs=5.0, gbs=10.0)
    assert peaks.floor_seconds(flops=1e11, nbytes=1e9) == pytest.approx(1.0)
    assert peaks.floor_seconds(flops=1e9, nbytes=1e10) == pytest.approx(1.0)
