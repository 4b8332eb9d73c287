"""Profiles: every kernel is counted, timed and named by its ONNX nodes."""

import json
import re
import threading
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from small_models import model, node, rand, value

import tvm_ext
from tvm_ext.errors import InputError, TargetError
from tvm_ext.hardware.cost_model import Roofline, Work
from tvm_ext.hardware.cpu import measured_peaks
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.profiling import _medians, _Stopwatch

# A machine whose vectors and threads do not depend on where tests run.
SMALL_VECTORS = host_description().model_copy(update={"vector_bits": 128, "cores": 2})


def compiled(nodes, inputs, outputs, opt_level="O3", **weights) -> tvm_ext.CompiledModel:
    return tvm_ext.compile(model(nodes, inputs, outputs, **weights), opt_level=opt_level)


@cache
def layers(opt_level: str = "O3") -> tvm_ext.CompiledModel:
    """Three layers, of which the last two are of one shape; then a softmax."""
    nodes, last = [], "x"
    for i in range(3):
        nodes.append(node("MatMul", [last, f"w{i}"], [f"m{i}"], name=f"mm {i}"))
        nodes.append(node("Relu", [f"m{i}"], [f"r{i}"], name=f"relu {i}"))
        last = f"r{i}"
    nodes.append(node("Softmax", [last], ["y"], name="soft"))
    weights = {"w0": rand(6, 4), "w1": rand(4, 4, seed=1), "w2": rand(4, 4, seed=2)}
    outputs = [value("y", [2, 4])]
    return compiled(nodes, [value("x", [2, 6])], outputs, opt_level, **weights)


@pytest.mark.parametrize("level", ["O0", "O3"])
def test_every_kernel_is_there_with_its_calls_and_nodes(level):
    model = layers(level)
    profile = model.profile({"x": rand(2, 6)}, repeat=2)
    expected: dict[str, list[str]] = {}
    for call in model.kernel_calls():
        expected.setdefault(call.kernel, []).append(call.where)
    assert {k.kernel: list(k.origins) for k in profile.kernels} == expected
    assert {k.kernel: k.calls for k in profile.kernels} == {
        name: len(places) for name, places in expected.items()
    }
    names = {name for call in model.kernel_calls() for name in call.origins}
    assert names == {*(f"{kind} {i}" for kind in ("mm", "relu") for i in range(3)), "soft"}
    assert all(kernel.microseconds > 0 for kernel in profile.kernels)
    assert profile.run_microseconds > 0
    slowest_first = [kernel.microseconds for kernel in profile.kernels]
    assert slowest_first == sorted(slowest_first, reverse=True)


def test_a_shared_kernel_is_one_row_with_all_its_calls():
    profile = layers().profile({"x": rand(2, 6)}, repeat=1)
    (shared,) = [kernel for kernel in profile.kernels if kernel.calls == 2]
    assert shared.origins == ("mm 1 + relu 1", "mm 2 + relu 2")


def test_a_loaded_model_has_the_same_profile(tmp_path):
    model = layers()
    model.save(tmp_path / "model.tvmx")
    loaded = tvm_ext.load(tmp_path / "model.tvmx")
    rows = [
        sorted((k.kernel, k.origins, k.calls) for k in m.profile({"x": rand(2, 6)}, 1).kernels)
        for m in (model, loaded)
    ]
    assert rows[0] == rows[1]


def branch(name: str, *operators: str) -> onnx.GraphProto:
    nodes, last = [], "a"
    for i, operator in enumerate(operators):
        nodes.append(node(operator, [last], [f"{name}{i}"], name=f"{name} {operator}"))
        last = f"{name}{i}"
    return helper.make_graph(nodes, name, [], [value(last, None)])


def branching(then_branch, else_branch, level):
    """Exp, then one of the branches by the input "flag"."""
    branches = {"then_branch": then_branch, "else_branch": else_branch}
    nodes = [
        node("Exp", ["x"], ["a"], name="before"),
        node("If", ["flag"], ["y"], name="choose", **branches),
    ]
    inputs = [value("x", [2, 4]), value("flag", [], TensorProto.BOOL)]
    return compiled(nodes, inputs, [value("y", [2, 4])], level)


@pytest.mark.extended
@pytest.mark.parametrize(("level", "taken"), [("O0", (4, 2)), ("O3", (2, 2))])
def test_branches_count_what_ran(level, taken):
    model = branching(branch("then", "Tanh", "Sin", "Cos"), branch("else", "Abs"), level)
    # At O3 the three operators of a branch are one kernel.
    for flag, ran in zip((True, False), taken, strict=True):
        profile = model.profile({"x": rand(2, 4), "flag": np.array(flag)}, repeat=2)
        assert sum(kernel.calls for kernel in profile.kernels) == ran
        assert all(kernel.origins for kernel in profile.kernels)


def test_a_model_without_kernels_has_an_empty_profile():
    model = compiled([], [value("x", [2])], [value("x", [2])])
    profile = model.profile({"x": rand(2)}, repeat=1)
    assert profile.kernels == ()
    assert profile.kernel_microseconds == 0
    assert profile.total.cost is None
    assert "no kernel ran" in profile.to_text()
    assert "No kernel ran" in profile.to_html()


def test_profiling_leaves_the_model_as_it_was():
    model, x = layers(), rand(2, 6)
    before = model.run({"x": x})["y"]
    first = model.profile({"x": x}, repeat=1)
    np.testing.assert_array_equal(model.run({"x": x})["y"], before)
    second = model.profile({"x": x}, repeat=1)
    assert {k.kernel: k.calls for k in first.kernels} == {k.kernel: k.calls for k in second.kernels}


def test_no_hook_stays_behind(monkeypatch):
    hooked: list[str] = []
    measure = _Stopwatch.__call__

    def counted(self, func, name, before, result, *args):
        hooked.append(name)
        return measure(self, func, name, before, result, *args)

    monkeypatch.setattr(_Stopwatch, "__call__", counted)
    model, x = layers(), rand(2, 6)
    model.profile({"x": x}, repeat=1)
    seen = len(hooked)
    model.run({"x": x})
    assert 0 < seen == len(hooked)


def test_runs_of_another_thread_are_not_counted():
    model, x = layers(), rand(2, 6)
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            model.run({"x": x})

    worker = threading.Thread(target=run)
    worker.start()
    try:
        profiles = [model.profile({"x": x}, repeat=3) for _ in range(5)]
    finally:
        stop.set()
        worker.join()
    assert {sum(k.calls for k in profile.kernels) for profile in profiles} == {
        len(model.kernel_calls())
    }


@pytest.mark.parametrize("repeat", [0, -3])
def test_at_least_one_run_is_made(repeat):
    assert layers().profile({"x": rand(2, 6)}, repeat=repeat).run_microseconds > 0


def test_wrong_inputs_are_refused_as_in_a_run():
    with pytest.raises(InputError, match="expected size 2 on axis 0"):
        layers().profile({"x": rand(3, 6)})


def test_work_is_counted_beside_the_measured_time():
    model = layers()
    profile = model.profile({"x": rand(2, 6)}, repeat=1)
    (shared,) = [kernel for kernel in profile.kernels if kernel.calls == 2]
    record = next(one for one in model.report.kernels if one.name == shared.kernel)
    # Two products of 2 x 4 by 4 x 4, and what follows them.
    assert shared.cost.flops == 2 * record.flops >= 2 * 2 * 2 * 4 * 4
    assert shared.cost.bytes == 2 * 4 * (2 * 4 + 4 * 4 + 2 * 4)
    assert shared.modelled_microseconds == pytest.approx(2e6 * record.estimated_seconds)
    assert shared.gflops == pytest.approx(shared.cost.flops / shared.microseconds / 1e3)
    machine = host_description()
    least = 1e6 * record.flops / machine.peak_flops("float32")
    assert shared.flops_share == pytest.approx(2 * least / shared.microseconds)
    least = 1e6 * record.bytes / machine.bandwidth(record.bytes)
    assert shared.bytes_share == pytest.approx(2 * least / shared.microseconds)
    assert profile.peaks.flops == machine.peak_flops("float32")
    assert profile.total.modelled_microseconds == pytest.approx(
        1e6 * model.report.estimated_seconds
    )


def test_calls_of_one_kernel_are_told_apart_by_their_nodes():
    profile = layers().profile({"x": rand(2, 6)}, repeat=1)
    nodes = {time.origins: time for time in profile.nodes}
    assert set(nodes) == {(f"mm {i} + relu {i}",) for i in range(3)} | {("soft",)}
    first, second = nodes[("mm 1 + relu 1",)], nodes[("mm 2 + relu 2",)]
    (shared,) = [kernel for kernel in profile.kernels if kernel.calls == 2]
    assert first.kernels == second.kernels == (shared.kernel,)
    assert first.microseconds + second.microseconds == pytest.approx(shared.microseconds)
    assert first.cost.flops == shared.cost.flops / 2


@pytest.fixture(scope="module")
def dynamic() -> tvm_ext.CompiledModel:
    nodes = [node("MatMul", ["x", "w"], ["m"], name="mm"), node("Relu", ["m"], ["y"], name="relu")]
    inputs, outputs = [value("x", ["N", "M", 6])], [value("y", ["N", "M", 4])]
    return compiled(nodes, inputs, outputs, w=rand(6, 4))


@pytest.mark.extended
def test_work_of_symbolic_sizes_is_that_of_the_run(dynamic):
    def work(n: int, m: int) -> tuple[float, float, float]:
        (kernel,) = dynamic.profile({"x": rand(n, m, 6)}, repeat=1).kernels
        return kernel.cost.flops, kernel.cost.bytes, kernel.modelled_microseconds

    (record,) = dynamic.report.kernels
    assert record.flops is record.bytes is record.estimated_seconds is None
    flops, nbytes, modelled = work(2, 5)
    assert nbytes == 4 * (2 * 5 * 6 + 6 * 4 + 2 * 5 * 4)
    assert flops == 2 * 5 * 4 * (2 * 6 + 1)
    expected = Roofline(host_description()).seconds(Work(flops, nbytes))
    assert modelled == pytest.approx(1e6 * expected)
    assert work(4, 5)[0] == 2 * flops


def test_a_saved_model_knows_the_work_and_versions_of_symbolic_sizes(dynamic, tmp_path):
    dynamic.save(tmp_path / "model.tvmx")
    loaded = tvm_ext.load(tmp_path / "model.tvmx")
    for x in (rand(2, 5, 6), rand(1, 1, 6)):
        (kernel,), (known,) = (
            model.profile({"x": x}, repeat=1).kernels for model in (loaded, dynamic)
        )
        assert kernel.cost == known.cost is not None
        assert kernel.versions == known.versions


@pytest.mark.slow
def test_numbers_among_arguments_tell_sizes():
    """Sizes of the second convolution's image follow from those of the model's, not the other way
    round: these come as numbers.
    """
    nodes = [
        node("Conv", ["x", "w"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", ["a", "v"], ["y"], strides=[2, 2], pads=[1, 1, 1, 1]),
    ]
    inputs, outputs = [value("x", ["N", 3, "H", "W"])], [value("y", ["N", 8, "h", "w"])]
    weights = {"w": rand(8, 3, 3, 3), "v": rand(8, 8, 3, 3)}
    profile = compiled(nodes, inputs, outputs, **weights).profile({"x": rand(2, 3, 18, 21)}, 1)
    assert profile.unknown_calls == 0
    exact = compiled(nodes, [value("x", [2, 3, 18, 21])], [value("y", [2, 8, 5, 6])], **weights)
    products = 2 * 2 * (8 * 3 * 9 * 9 * 11 + 8 * 8 * 9 * 5 * 6)
    assert products <= profile.total.cost.flops
    assert exact.profile({"x": rand(2, 3, 18, 21)}, 1).total.cost.flops >= products


def test_a_report_without_formulas_leaves_the_work_open(dynamic, monkeypatch):
    records = [replace(one, symbolic=None) for one in dynamic.report.kernels]
    monkeypatch.setattr(dynamic.report, "kernels", records)
    profile = dynamic.profile({"x": rand(2, 5, 6)}, repeat=1)
    (kernel,) = profile.kernels
    assert kernel.cost is kernel.gflops is kernel.bytes_share is None
    assert "not known  (the run decides the sizes of 1 call)" in profile.to_text()
    assert json.loads(profile.to_json())["modelled_microseconds"] is None
    assert "Versions" not in profile.to_text()


@pytest.fixture(scope="module")
def sigmoid() -> tvm_ext.CompiledModel:
    """An elementwise kernel, called twice: vectors where an array has as many elements."""
    nodes = [node("Sigmoid", ["x"], ["a"], name="a"), node("Sigmoid", ["a"], ["y"], name="b")]
    model_of_any = model(nodes, [value("x", ["N"])], [value("y", ["N"]), value("a", ["N"])])
    return tvm_ext.compile(model_of_any, SMALL_VECTORS, specialize=[{"N": 8}])


@pytest.mark.extended
def test_versions_are_those_of_the_sizes_that_ran(sigmoid):
    def ran(n: int) -> tuple[dict[str, int], ...]:
        (kernel,) = sigmoid.profile({"x": rand(n)}, repeat=3).kernels
        return kernel.versions

    (record,) = sigmoid.report.kernels
    (choice,) = record.symbolic.versions
    assert [one.name for one in choice] == [
        "vectors of 16, threads",
        "vectors of 16, one thread",
        "no vectors, one thread",
    ]
    assert ran(15) == ({"no vectors, one thread": 2},)
    assert ran(16) == ({"vectors of 16, one thread": 2},)
    assert ran(1 << 22) == ({"vectors of 16, threads": 2},)


def test_a_profile_says_which_program_and_versions_ran(sigmoid):
    exact, other = (sigmoid.profile({"x": rand(n)}, repeat=1) for n in (8, 9))
    assert exact.program == "for exact sizes: x: float32[8]"
    assert other.program == "for any sizes"
    assert re.search(r"^Program +for any sizes$", other.to_text(), re.MULTILINE)
    assert "no vectors, one thread: 2 of 2" in other.to_text()
    assert "no vectors, one thread: 2 of 2" in other.to_html()
    assert "Versions" not in exact.to_text() + exact.to_html()
    data = json.loads(other.to_json())
    assert data["program"] == "for any sizes"
    assert data["kernels"][0]["versions"] == [{"no vectors, one thread": 2}]
    assert json.loads(exact.to_json())["kernels"][0]["versions"] == []


def test_of_a_machine_that_no_backend_knows_there_are_no_peaks(monkeypatch):
    model = layers()
    monkeypatch.setattr(model.report, "target", {"kind": "lost", "name": "plug-in"})
    profile = model.profile({"x": rand(2, 6)}, repeat=1)
    assert profile.peaks is profile.total.flops_share is profile.total.bytes_share is None
    assert profile.total.gflops > 0
    assert profile.total.modelled_microseconds > 0


def test_measured_peaks_are_what_rates_are_compared_with(monkeypatch):
    twice = host_description().model_copy(update={"clock_ghz": 2 * host_description().clock_ghz})
    monkeypatch.setattr(measured_peaks, "with_measured_peaks", lambda machine: twice)
    model = layers()
    profile = model.profile({"x": rand(2, 6)}, repeat=1, measure_peaks=True)
    assert profile.peaks.flops == twice.peak_flops("float32")
    assert "measured" in profile.peaks.source
    total = profile.total
    least = 1e6 * total.cost.flops / twice.peak_flops("float32")
    assert total.flops_share == pytest.approx(least / total.microseconds)


def test_peaks_of_a_gpu_are_not_measured(monkeypatch):
    model, described = layers(), resolve_target("nvidia-a100").model_dump(mode="json")
    monkeypatch.setattr(model.report, "target", described)
    with pytest.raises(TargetError, match="'nvidia-a100'; expected one for a CPU"):
        model.profile({"x": rand(2, 6)}, measure_peaks=True)


def test_branches_leave_open_which_call_of_the_program_a_kernel_was():
    model = branching(branch("then", "Tanh", "Sin"), branch("else", "Tanh", "Cos"), "O0")
    profile = model.profile({"x": rand(2, 4), "flag": np.array(True)}, repeat=1)
    assert {time.origins for time in profile.nodes} == {
        ("before",),
        ("then Tanh", "else Tanh"),
        ("then Sin",),
    }
    assert "branches or loops leave open which ran" in profile.to_html()


def stopwatch(*calls: tuple[str, float]) -> _Stopwatch:
    watch = _Stopwatch({name for name, _ in calls})
    watch.calls = [(name, ((2,),), float(i), lasted) for i, (name, lasted) in enumerate(calls)]
    watch.lasted = 9.0
    return watch


def test_medians_are_taken_call_by_call_within_the_shortest_run():
    runs = [
        stopwatch(("k", 1.0), ("l", 5.0), ("k", 3.0)),
        stopwatch(("k", 2.0), ("l", 7.0), ("k", 9.0)),
        stopwatch(("k", 9.0), ("l", 6.0)),
    ]
    measured = _medians(runs, 0.5)
    assert [(call.kernel, call.seconds) for call in measured.calls] == [("k", 2.0), ("l", 6.0)]
    # Of 6, 9 and 15 seconds the second run is nearest to 2 + 6.
    assert [(call.begun, call.lasted) for call in measured.calls] == [(0.0, 2.0), (1.0, 7.0)]
    assert (measured.seconds, measured.lasted) == (0.5, 9.0)


def test_the_hook_sees_kernels_only():
    watch = _Stopwatch({"kernel"})
    tensor = tvm.runtime.tensor(rand(2, 3))
    for name in ("vm.builtin.alloc_storage", "kernel"):
        for before in (True, False):
            watch(None, name, before, None, tensor, 3)
    assert [(name, shapes) for name, shapes, *_ in watch.calls] == [("kernel", ((2, 3), 3))]
