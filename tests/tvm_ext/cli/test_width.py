"""Every command fits a terminal of 80 columns, whatever the names in a model are."""

from pathlib import Path

import onnx
import pytest
from commands import invoke
from record_folders import kernel_trials, trial, write_folder
from rich.cells import cell_len
from rich.console import Group
from small_models import model, node, rand, value
from tuning_sessions import session, tuned

from tvm_ext.check.result import Bisection, CheckResult
from tvm_ext.check.tolerance import compare
from tvm_ext.report.terminal_tables import plain_text
from tvm_ext.report.tuning_text import tuning_summary
from tvm_ext.tuning.logs.trial_log import append_trial

WIDTH = 80
LONG = "/encoder/layer.7/" + 283 * "x"
WIDE = 150 * "層"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the commands run: a model, the same compiled, and two folders of records."""
    path = tmp_path_factory.mktemp("width")
    x, y = "x" * 300, "y" * 300
    nodes = [
        node("MatMul", [x, "w"], ["a"], name=f"{LONG}0"),
        node("Relu", ["a"], ["b"], name=f"{LONG}1"),
        node("Softmax", ["b"], [WIDE], name=WIDE),
        node("MatMul", [WIDE, "w"], [y], name=f"{LONG}2"),
    ]
    outputs = [value(name, [4, 16]) for name in (WIDE, y)]
    onnx.save(model(nodes, [value(x, [4, 16])], outputs, w=rand(16, 16)), path / "long.onnx")
    inputs = [value("x", [f"{LONG}n", f"{LONG}l", 16])]
    softmax = node("Softmax", ["s"], [WIDE], name=WIDE)
    attention = [*_scores(), softmax, node("MatMul", [WIDE, "x"], ["y"], name=f"{LONG}3")]
    onnx.save(model(attention, inputs, [value("y", [None] * 3)]), path / "dynamic.onnx")
    for name, best in (("before", 1e-6), ("after", 2e-6)):
        write_folder(path / name, best=best, trials=_trials_with_long_names)
    append_trial(path / "after", trial(6, status="modelled", kernel_name=WIDE, origins=[]))
    assert invoke("compile", path / "long.onnx", "-q", "-o", path / "long.tvmx").exit_code == 0
    return path


def _scores():
    swapped = node("Transpose", ["x"], ["t"], name=f"{LONG}1", perm=[0, 2, 1])
    return [swapped, node("MatMul", ["x", "t"], ["s"], name=f"{LONG}2")]


def _trials_with_long_names(size, best):
    found = kernel_trials(size, best)
    names = {"kernel_name": f"{LONG}{size}", "origins": [LONG, WIDE]}
    return [one.model_copy(update=names) for one in found]


COMMANDS = (
    "compile long.onnx -O0",
    "compile long.onnx -O0 -v",
    "compile long.onnx --dry-run",
    "compile dynamic.onnx -O0",
    "profile dynamic.onnx --repeat 2",
    "run long.tvmx --repeat 1 --print-top 2",
    "check long.tvmx --against long.onnx",
    "check long.onnx -O0 --all-values",
    "export long.tvmx -o exported",
    "bench long.tvmx --count 5 --warmup 0 --against onnxruntime --onnx long.onnx",
    "profile long.tvmx --repeat 2",
    "profile long.tvmx --repeat 2 -v",
    "passes list",
    "passes list O0 -v",
    "passes explain long.tvmx",
    "passes explain long.tvmx -v",
    "passes explain WinogradConvolution",
    "targets list",
    "targets show cpu",
    "targets show wse2",
    "targets show nvidia-h100",
    "logs show after",
    "logs show after -v",
    "logs best after",
    "logs best after -v",
    "logs stats after",
    "logs diff before after -v",
    "logs verify before --target x86-64",
    "logs merge before after --output both",
    "logs prune before --output pruned",
    "wafer explain long.onnx --target mesh16",
    "wafer explain long.onnx --target mesh16 -v",
    "wafer explain long.onnx --target mesh16 --kernel *",
    "wafer simulate two-phase --columns 8 --words 64 --group 2",
)


@pytest.mark.extended
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_fits_80_columns(folder: Path, monkeypatch, command):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    result = invoke(*command.split())
    assert result.exit_code in (0, 1), result.stderr
    assert result.stdout.strip()
    assert too_long(result.stdout) == []


def test_a_pipe_without_columns_is_wider(folder, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = invoke("passes", "explain", folder / "long.tvmx").stdout.splitlines()
    assert WIDTH < max(map(cell_len, lines)) <= 120


def test_a_check_that_differs_fits_80_columns():
    ours = {LONG: rand(2, 3, seed=1), WIDE: rand(2, seed=2)}
    theirs = {LONG: rand(2, 3, seed=3), WIDE: rand(3, seed=2), "missing": rand(1)}
    bisection = Bisection(remedies=[LONG], notes=[f"{LONG} {WIDE}"])
    result = CheckResult(LONG, "cpu", "O3", tuple(compare(ours, theirs)), bisection)
    text = result.to_text(WIDTH)
    assert "FAIL" in text
    assert too_long(text) == []


def test_the_summary_of_a_tuning_session_fits_80_columns():
    kernels = [tuned(LONG), tuned(WIDE, calls=3), tuned("measured", trials=1, failed=0)]
    progress = session(0, kernels=kernels, notes=[LONG, "short"])
    progress.kernels[0].best_schedule = LONG
    text = plain_text(Group(tuning_summary(progress)), WIDTH)
    assert "Expected latency" in text
    assert too_long(text) == []


def too_long(text: str) -> list[str]:
    return [line for line in text.splitlines() if cell_len(line) > WIDTH]
