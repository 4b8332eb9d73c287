"""A model is run ahead on zeros where that ends well."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from small_models import mlp, model, node, rand, value
from thoroughness import one_in
from unoptimised import HOST

import tvm_ext
from tvm_ext import compiled_model
from tvm_ext.check.inputs import zeros_to_run
from tvm_ext.compiled_model import CompiledModel
from tvm_ext.hardware.cpu.threads import ThreadPool
from tvm_ext.report.compile_report import CompileReport
from tvm_ext.tensor_spec import SizeRange, TensorSpec


def shapes(*inputs: tuple) -> list[tuple[int, ...]] | None:
    """Of the zeros for inputs of these element types and shapes."""
    specs = [TensorSpec(f"x{place}", *given) for place, given in enumerate(inputs)]
    made = tvm_ext.compile(mlp(), HOST, opt_level="O0").report
    found = zeros_to_run(specs, CompileReport.from_json(made.to_json()))
    return None if found is None else [array.shape for array in found.values()]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("inputs", "wanted"),
    one_in(
        3,
        [
            ([("float32", (2, 3))], [(2, 3)]),
            ([("float32", ("N", 3))], [(1, 3)]),
            ([("float32", ("N", 3)), ("int64", ("M", 1))], [(1, 3), (1, 1)]),
            ([("float32", ("N", 3, "H", "W"))], [(1, 3, 224, 224)]),
            ([("int64", ("N", "n")), ("int64", ("N", "n"))], [(1, 16), (1, 16)]),
            ([("float32", ("N", "n"), (None, SizeRange(7, 9)))], [(1, 7)]),
        ],
    ),
)
def test_symbolic_sizes_are_usual_ones(inputs: list, wanted: list) -> None:
    assert shapes(*inputs) == wanted


@pytest.mark.extended
@pytest.mark.parametrize(
    "inputs",
    [
        # A mask of past and present together, and their lengths.
        [("int64", ("N", "new")), ("int64", ("N", "all")), ("float32", ("N", 2, "past", 8))],
        # Sound, and video.
        [("float32", ("N", "samples"))],
        [("float32", ("N", 3, "frames", "h", "w"))],
    ],
)
def test_what_nobody_can_guess_is_not_run(inputs: list) -> None:
    assert shapes(*inputs) is None


def ran_ahead(monkeypatch: pytest.MonkeyPatch, proto: Any) -> list[tuple[int, ...]]:
    """Shapes of the first input of what was run while compiling."""
    seen = []
    run = CompiledModel._results

    def spy(self: CompiledModel, inputs: Any, on_device: Any) -> Any:
        seen.append(next(iter(inputs.values())).shape)
        return run(self, inputs, on_device)

    monkeypatch.setattr(CompiledModel, "_results", spy)
    tvm_ext.compile(proto, HOST, opt_level="O1")
    return seen


@pytest.mark.extended
def test_what_takes_long_at_usual_sizes_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pixel with every other: at 224 by 224 pixels the scores alone are ten gigabytes."""
    nodes = [
        node("Reshape", ["x", "rows"], ["r"]),
        node("Transpose", ["r"], ["turned"], perm=[0, 2, 1]),
        node("MatMul", ["turned", "r"], ["scores"]),
        node("ReduceMax", ["scores"], ["y"], axes=[1], keepdims=0),
    ]
    proto = model(
        nodes, [value("x", ["N", 4, "H", "W"])], [value("y", None)], rows=np.array([0, 4, -1])
    )
    assert ran_ahead(monkeypatch, proto) == []


@pytest.mark.extended
@pytest.mark.parametrize(("batch", "wanted"), [("N", (1, 6)), (3, (3, 6))])
def test_compile_runs_ahead(batch: Any, wanted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_model, "_QUICK_SECONDS", 0.0)
    assert ran_ahead(monkeypatch, mlp(batch)) == [wanted]


@pytest.mark.extended
def test_a_quick_program_runs_ahead_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_model, "_QUICK_SECONDS", 60.0)
    assert ran_ahead(monkeypatch, mlp(3)) == [(3, 6), (3, 6)]


def test_sizes_computed_from_sizes_are_run_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape that only a tensor holds: its elements follow from the batch, not from data."""
    monkeypatch.setattr(compiled_model, "_QUICK_SECONDS", 0.0)
    nodes = [
        node("Shape", ["x"], ["sizes"]),
        node("CumSum", ["sizes", "zero"], ["sums"]),
        node("Expand", ["v", "sums"], ["y"]),
    ]
    proto = model(
        nodes, [value("x", ["N", 6])], [value("y", ["a", "b"])], v=rand(1, 1), zero=np.array(0)
    )
    assert ran_ahead(monkeypatch, proto) == [(1, 6)]


@pytest.mark.extended
def test_sizes_from_data_are_not_run_on_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("NonZero", ["x"], ["places"]), node("Transpose", ["places"], ["y"])]
    proto = model(nodes, [value("x", [2, 3])], [value("y", ["n", 2], TensorProto.INT64)])
    assert ran_ahead(monkeypatch, proto) == []


@pytest.mark.extended
def test_a_run_ahead_that_fails_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One element of a batch, but two are read."""
    monkeypatch.setattr(compiled_model, "_QUICK_SECONDS", 0.0)
    nodes = [node("Slice", ["x", "one", "two", "zero"], ["s"]), node("Add", ["s", "w"], ["y"])]
    numbers = {name: np.array([place]) for place, name in enumerate(("zero", "one", "two"))}
    proto = model(nodes, [value("x", ["N", 6])], [value("y", [1, 6])], w=rand(1, 6), **numbers)
    assert ran_ahead(monkeypatch, proto) == [(1, 6)]
    x = rand(4, 6)
    found = tvm_ext.compile(proto, HOST, opt_level="O1").run({"x": x})["y"]
    np.testing.assert_allclose(found, x[1:2] + rand(1, 6), rtol=1e-6)


def threads_told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the pool is told ahead of each run."""
    told: list[int] = []
    use = ThreadPool.use_threads

    def watched(pool: ThreadPool, count: int) -> None:
        before = pool._use
        pool._use = told.append
        use(pool, count)
        pool._use = before

    monkeypatch.setattr(ThreadPool, "use_threads", watched)
    return told


@pytest.mark.extended
def test_threads_are_those_of_the_run_or_the_load_or_the_target(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled = tvm_ext.compile(mlp(), HOST.with_cores(2), opt_level="O0")
    compiled.save(tmp_path / "m.tvmx")
    feed = {"x": rand(2, 6)}
    wanted = compiled.run(feed)
    loaded = tvm_ext.load(tmp_path / "m.tvmx", threads=3)
    told = threads_told(monkeypatch)
    for got in (loaded.run(feed), loaded.run(feed, threads=5), compiled.run(feed, threads=1)):
        for name in wanted:
            np.testing.assert_array_equal(got[name], wanted[name])
    assert told == [3, 5, 1]


@pytest.mark.extended
def test_no_threads_are_refused(tmp_path: Path) -> None:
    compiled = tvm_ext.compile(mlp(), HOST, opt_level="O0")
    compiled.save(tmp_path / "m.tvmx")
    refusal = "0 threads were asked for; expected 1 or more"
    with pytest.raises(tvm_ext.TvmExtError, match=refusal):
        tvm_ext.load(tmp_path / "m.tvmx", threads=0)
    with pytest.raises(tvm_ext.TvmExtError, match=refusal):
        compiled.run({"x": rand(2, 6)}, threads=0)


@pytest.mark.extended
def test_compile_plans_for_the_threads_asked_for() -> None:
    assert tvm_ext.compile(mlp(), HOST, threads=3, opt_level="O0").report.target["cores"] == 3
    with pytest.raises(tvm_ext.TvmExtError, match="is not a CPU"):
        tvm_ext.compile(mlp(), "cuda", threads=2)
