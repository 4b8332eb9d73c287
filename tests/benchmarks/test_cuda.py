"""The benchmark for GPUs without one: its cases are valid and compile, its errors are one line."""

import sys
import types

import cuda
import numpy as np
import onnx
import pytest
from gpu.cases import GROUPS, Case, cases
from gpu.device import OnOwnStream, Peaks, Stopwatch

from tvm_ext.errors import InputError
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
    monkeypatch.setattr(cuda, "runtime_problem", lambda: "no driver; expected one: install it")
    assert cuda.main([]) == 2
    printed = capsys.readouterr()
    assert printed.err == (
        "cuda.py: error: nothing can be measured: no driver; expected one: install it\n"
    )
    assert not printed.out


@pytest.mark.parametrize("torch", [None, types.SimpleNamespace(__version__="2")])
def test_without_pytorch_there_is_one_line_and_code_2(monkeypatch, capsys, torch) -> None:
    monkeypatch.setattr(cuda, "runtime_problem", lambda: "")
    if torch is not None:
        torch.cuda = types.SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert cuda.main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "PyTorch" in line
    assert "pip install torch" in line


def test_unknown_groups_are_named() -> None:
    with pytest.raises(InputError, match=r"--groups names 'matmull'; .*'matmul'"):
        cuda._groups(cuda._parser().parse_args(["--groups", "matmull"]))


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


def test_the_table_holds_shares_ratios_and_reasons() -> None:
    case = next(case for case in cases() if case.group == "matmul")
    peaks = Peaks("GPU", 1e12, {"bfloat16": case.work / 10e-6})
    found = _result(case, {"tvm-ext": 20e-6, "PyTorch": 10e-6})
    missing = _result(case, {"PyTorch": 10e-6})
    missing.reasons["tvm-ext"] = "no kernel"
    table = cuda._table("matmul", [found, missing], peaks)
    columns = [list(column.cells) for column in table.columns]
    assert columns[3] == ["50 %", ""]
    assert columns[4] == ["0.50", "10.0 us"]
    assert columns[5] == ["0e+00", "no kernel"]
    assert (found.failed, missing.failed) == (False, True)


def _result(case: Case, seconds: dict[str, float]) -> "cuda.Result":
    started = dict.fromkeys(seconds, "graph")
    result = cuda.Result(case.name, case.group, case.dtype, case.work, case.limit, seconds, started)
    result.difference = float(np.float32(0)) if "tvm-ext" in seconds else None
    return result
