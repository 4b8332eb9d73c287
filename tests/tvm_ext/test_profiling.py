"""Profiles: every kernel is counted, timed and named by its ONNX nodes."""

import json
import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from rich.console import Console
from small_models import model, node, rand, value

import tvm_ext
from tvm_ext.errors import InputError
from tvm_ext.profiling import KernelTime, Profile, _medians, _Stopwatch
from tvm_ext.report.records import KernelCall


def compiled(nodes, inputs, outputs, opt_level="O3", **weights) -> tvm_ext.CompiledModel:
    return tvm_ext.compile(model(nodes, inputs, outputs, **weights), opt_level=opt_level)


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


@pytest.mark.parametrize(("level", "taken"), [("O0", (4, 2)), ("O3", (2, 2))])
def test_branches_count_what_ran(level, taken):
    nodes = [
        node("Exp", ["x"], ["a"], name="before"),
        node(
            "If",
            ["flag"],
            ["y"],
            name="choose",
            then_branch=branch("then", "Tanh", "Sin", "Cos"),
            else_branch=branch("else", "Abs"),
        ),
    ]
    inputs = [value("x", [2, 4]), value("flag", [], TensorProto.BOOL)]
    model = compiled(nodes, inputs, [value("y", [2, 4])], level)
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
    assert profile.to_table().row_count == 0


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


PROFILE = Profile(
    (
        KernelTime("slow", ("a + b", "c", "d", "e"), 4, 30.0),
        KernelTime("fast", ("f",), 1, 10.0),
    ),
    55.0,
)


def test_table_shows_shares_and_shortens_many_nodes():
    console = Console(width=120)
    with console.capture() as capture:
        console.print(PROFILE.to_table())
    text = capture.get()
    assert "one run: 55.0 us" in text
    assert "75.0 %" in text
    assert "25.0 %" in text
    assert "(1 more)" in text
    assert PROFILE.to_table(limit=1).row_count == 1


def test_plain_data_is_json():
    data = json.loads(json.dumps(PROFILE.to_dict()))
    assert data["kernel_microseconds"] == 40.0
    assert data["kernels"][0]["origins"] == ["a + b", "c", "d", "e"]


def test_medians_are_taken_call_by_call_within_the_shortest_run():
    runs = [
        [("k", 1e-6), ("l", 5e-6), ("k", 3e-6)],
        [("k", 2e-6), ("l", 5e-6), ("k", 9e-6)],
        [("k", 9e-6), ("l", 6e-6)],
    ]
    times = _medians(runs, [KernelCall("k", ("a",)), KernelCall("l", ())])
    assert [(t.kernel, t.calls, t.origins) for t in times] == [("l", 1, ("",)), ("k", 1, ("a",))]
    assert [round(t.microseconds, 6) for t in times] == [5.0, 2.0]
