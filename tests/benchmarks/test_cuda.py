"""The benchmark for GPUs without one: its cases are valid and compile, its errors are one line."""

import contextlib
import dataclasses
import sys
import types

import numpy as np
import onnx
import pytest
from gpu import command, measuring
from gpu.cases import GROUPS, Case, cases
from gpu.command import table
from gpu.measuring import OURS, Bench, CudaSettings, Result
from gpu.programs import OnOwnStream, Peaks, Stopwatch, largest_difference

from tvm_ext.errors import InputError, ReferenceUnavailableError
from tvm_ext.onnx_frontend import import_model


@pytest.mark.parametrize("group", GROUPS)
def test_cases_are_valid_models(group: str) -> None:
    found = [case for case in cases() if case.group == group]
    assert len({(case.name, case.dtype) for case in found}) == len(found) >= 4
    for case in found:
        onnx.checker.check_model(case.model, full_check=True)
        imported = import_model(case.model, None)
        assert [list(spec.shape) for spec in imported.inputs] == [list(s) for s in case.shapes]
        assert {spec.dtype for spec in imported.inputs} == {case.dtype}


def test_without_a_gpu_there_is_one_line_and_code_2(monkeypatch, capsys) -> None:
    monkeypatch.setattr(command, "runtime_problem", lambda: "no driver; expected one: install it")
    assert command.main("", []) == 2
    printed = capsys.readouterr()
    assert printed.err == (
        "cuda.py: error: nothing can be measured: no driver; expected one: install it\n"
    )
    assert not printed.out


@pytest.mark.parametrize("torch", [None, types.SimpleNamespace(__version__="2")])
def test_without_pytorch_there_is_one_line_and_code_2(monkeypatch, capsys, torch) -> None:
    monkeypatch.setattr(command, "runtime_problem", lambda: "")
    if torch is not None:
        torch.cuda = types.SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert command.main("", []) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "PyTorch" in line
    assert "pip install torch" in line


def test_unknown_groups_are_named() -> None:
    with pytest.raises(InputError, match=r"--groups names 'matmull'; .*'matmul'"):
        command._groups(command._parser("").parse_args(["--groups", "matmull"]))


class FakeTorch:
    """Counts what a stopwatch does; recording fails where asked."""

    def __init__(self, recordable: bool) -> None:
        outer = self
        self.replays = 0

        class Graph:
            def replay(self) -> None:
                outer.replays += 1

        class Recording:
            def __init__(self, graph: Graph) -> None:
                pass

            def __enter__(self) -> None:
                if not recordable:
                    raise RuntimeError("operation not permitted when stream is capturing")

            def __exit__(self, *error: object) -> None:
                pass

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                pass

            def record(self) -> None:
                pass

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, other: object) -> float:
                return 100.0

        self.cuda = types.SimpleNamespace(
            synchronize=lambda: None, CUDAGraph=Graph, graph=Recording, Event=Event
        )


@pytest.mark.parametrize(("recordable", "started"), [(True, "graph"), (False, "calls")])
def test_the_stopwatch_records_what_can_be_recorded(recordable: bool, started: str) -> None:
    torch = FakeTorch(recordable)
    calls: list[int] = []
    (timed,) = Stopwatch(torch, 0.25).in_turn([lambda: calls.append(1)])
    assert timed.started == started
    assert timed.seconds == pytest.approx(0.1 / 20)
    assert (torch.replays > 3) == recordable
    (own,) = Stopwatch(torch, 0.25).in_turn([OnOwnStream(lambda: calls.append(1))])
    assert own.started == "calls"


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        ([1.0, 2.0, 4.0], 0.0),
        ([1.0, 2.0, 3.0], 0.25),
        ([1.0, np.nan, 4.0], np.inf),
        ([1.0, np.inf, 4.0], np.inf),
        ([1.0, 2.0], np.inf),
    ],
)
def test_differences_are_relative_and_numbers_have_to_be_numbers(found, difference) -> None:
    wanted = np.array([1.0, 2.0, 4.0], np.float32)
    assert largest_difference([np.array(found, np.float32)], [wanted]) == difference
    result = Result("x", "matmul")
    result.compare([np.array(found, np.float32)], [wanted], "PyTorch", 0.1)
    assert result.wrong == (difference > 0.1)


def test_what_is_no_number_in_both_is_the_same() -> None:
    holes = np.array([1.0, np.nan, -np.inf], np.float32)
    assert largest_difference([holes], [holes.copy()]) == 0


class Array:
    """A tensor of the fake PyTorch."""

    def __init__(self, shape) -> None:
        self.shape = shape

    def cuda(self) -> "Array":
        return self

    def to(self, memory_format: str) -> "Array":
        return self


class BenchTorch(FakeTorch):
    """With as much of PyTorch as a bench needs; ``lost`` is whether its device is gone."""

    float16 = bfloat16 = float32 = channels_last = "kind"

    def __init__(self) -> None:
        super().__init__(recordable=True)
        self.lost = False
        self.cuda.synchronize = self._synchronize
        self.cuda.empty_cache = lambda: None

    def _synchronize(self) -> None:
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def manual_seed(self, seed: int) -> None:
        pass

    def randn(self, *shape: int, device: str, dtype: str) -> Array:
        return Array(shape)

    def from_numpy(self, array: np.ndarray) -> Array:
        return Array(array.shape)

    def inference_mode(self) -> "contextlib.nullcontext[None]":
        return contextlib.nullcontext()


def bench_with(monkeypatch, ours) -> tuple[Bench, BenchTorch]:
    """A bench whose programs return nothing but zeros; ``ours`` takes the model."""
    torch = BenchTorch()
    monkeypatch.setattr(Bench, "_ours", lambda self, model, tensors: ours(model))
    monkeypatch.setattr(measuring, "host_arrays", lambda torch, outputs: [np.zeros(3)])
    return Bench(torch, Stopwatch(torch, 0.1), CudaSettings()), torch


def simple_case(group: str) -> Case:
    """A case whose computation in PyTorch is none."""
    case = next(case for case in cases() if case.group == group)
    return dataclasses.replace(case, torch=lambda torch, *tensors: 0)


def test_one_that_fails_is_a_reason_and_the_next_is_measured(monkeypatch) -> None:
    def ours(model):
        if model.graph.node[0].op_type == "MatMul":
            raise InputError("no kernel; expected one")
        return lambda: 0

    bench, _ = bench_with(monkeypatch, ours)
    failed = bench.kernel(simple_case("matmul"))
    assert failed.reasons == {OURS: "no kernel; expected one"}
    assert list(failed.seconds) == ["PyTorch"]
    image = bench.kernel(simple_case("conv"))
    assert set(image.seconds) == {OURS, "PyTorch", "PyTorch, channels last"}
    assert (image.difference, image.compared_with, image.failed) == (0, "PyTorch", False)


def test_after_a_lost_context_all_that_was_measured_is_kept(monkeypatch) -> None:
    def ours(model):
        torch.lost = True
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    bench, torch = bench_with(monkeypatch, ours)
    first, second = (bench.kernel(simple_case("attention")) for _ in range(2))
    assert "context is lost" in first.reasons[OURS]
    assert second.reasons == {OURS: f"not measured: '{first.name}' took the process's CUDA context"}
    assert first.failed
    assert second.failed


def test_models_that_cannot_be_read_or_compared(monkeypatch, tmp_path) -> None:
    bench, _ = bench_with(monkeypatch, lambda model: lambda: 0)
    missing = bench.model(tmp_path / "missing.onnx", {})
    assert missing.failed
    assert "missing.onnx" in missing.reasons[OURS]
    path = tmp_path / "m.onnx"
    onnx.save(next(case.model for case in cases() if case.name == "gelu"), path)

    def refused(source):
        raise ReferenceUnavailableError("none is installed; expected one")

    monkeypatch.setattr(measuring, "ReferenceSession", refused)
    monkeypatch.setattr(measuring, "random_inputs", lambda specs, seed: {"x": np.zeros(3)})
    result = bench.model(path, {})
    assert OURS in result.seconds
    assert {"torch.compile", "ONNX Runtime", "comparison"} == set(result.reasons)
    cells = [list(column.cells) for column in table("model", [result], Peaks("", 1, {})).columns]
    assert cells[-1] == ["not compared: none is installed; expected one"]


def test_the_table_holds_shares_ratios_and_reasons() -> None:
    case = next(case for case in cases() if case.group == "matmul")
    peaks = Peaks("GPU", 1e12, {"bfloat16": case.work / 10e-6})
    found = _result(case, {"tvm-ext": 20e-6, "PyTorch": 10e-6})
    missing = _result(case, {"PyTorch": 10e-6})
    missing.reasons["tvm-ext"] = "no kernel"
    shown = table("matmul", [found, missing], peaks)
    columns = [list(column.cells) for column in shown.columns]
    assert columns[3] == ["50 %", ""]
    assert columns[4] == ["0.50", "10.0 us"]
    assert columns[5] == ["0e+00 (PyTorch)", "no kernel"]
    assert (found.failed, missing.failed) == (False, True)


def _result(case: Case, seconds: dict[str, float]) -> Result:
    started = dict.fromkeys(seconds, "graph")
    result = Result(case.name, case.group, case.dtype, case.work, case.limit, seconds, started)
    if OURS in seconds:
        result.compare([np.zeros(3)], [np.zeros(3)], "PyTorch", 0.1)
    return result
