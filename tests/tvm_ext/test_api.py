"""From an ONNX model to numbers: every way in, every kind of input and output."""

import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto
from small_models import V, W, assert_mlp, mlp, model, node, rand, value
from thoroughness import ALL_CASES
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import (
    ConfigError,
    InputError,
    PassError,
    RunError,
    TargetError,
    TvmExtError,
)
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.report.compile_report import CompileReport

REGISTER = "import tvm_ext; tvm_ext.register_pass(lambda mod: mod, name='mine')"
LEVELS = [0, 1, 2, 3, "0", "O1", "o2", "O3"] if ALL_CASES else [0, "1", "o2", "O3"]


@pytest.fixture(scope="module")
def compiled() -> tvm_ext.CompiledModel:
    return tvm_ext.compile(mlp(), HOST)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["str", "Path", "ModelProto"])
def test_a_model_comes_as_path_or_proto(tmp_path, kind):
    path = tmp_path / "my model.onnx"
    onnx.save(mlp(), path)
    source = {"str": str(path), "Path": path, "ModelProto": mlp()}[kind]
    made = tvm_ext.compile(source, HOST)
    assert_mlp(made, rand(3, 6))
    assert made.report.model == ("small" if kind == "ModelProto" else "my model")


@pytest.mark.extended
def test_the_given_proto_stays_as_it_was():
    proto = mlp()
    before = proto.SerializeToString()
    tvm_ext.compile(proto, HOST, input_shapes={"x": [2, 6]})
    assert proto.SerializeToString() == before


# Every level once, and every way to write one.
@pytest.mark.parametrize("level", LEVELS)
def test_every_level_computes_the_same(level):
    made = tvm_ext.compile(mlp(), HOST, opt_level=level)
    assert made.report.opt_level == f"O{str(level)[-1]}"
    for batch in (1, 3, 17):
        assert_mlp(made, rand(batch, 6))


@pytest.mark.extended
def test_input_shapes_freeze_a_dynamic_size():
    made = tvm_ext.compile(mlp(), HOST, input_shapes={"x": (5, 6)})
    assert made.inputs[0].shape == (5, 6)
    assert made.outputs[0].shape == (5, 3)
    tensors = "x: float32[5, 6] -> z: float32[5, 3], a: float32[5, 4]"
    assert repr(made) == f"<CompiledModel small for {made.report.target['name']}: {tensors}>"
    assert_mlp(made, rand(5, 6))
    with pytest.raises(InputError, match="expected size 5 on axis 0"):
        made.run({"x": rand(4, 6)})


@pytest.mark.extended
def test_a_dynamic_model_knows_names_dtypes_and_symbols(compiled):
    assert [spec.describe() for spec in compiled.inputs] == ["x: float32['N', 6]"]
    assert [spec.name for spec in compiled.outputs] == ["z", "a"]
    assert compiled.outputs[0].shape == ("N", 3)


def test_order_of_inputs_does_not_matter():
    proto = model(
        [node("Sub", ["left", "right"], ["y"])],
        [value("left", [3]), value("right", [3])],
        [value("y", [3])],
    )
    made = tvm_ext.compile(proto, HOST)
    left, right = rand(3), rand(3, seed=1)
    for inputs in ({"left": left, "right": right}, {"right": right, "left": left}):
        np.testing.assert_array_equal(made.run(inputs)["y"], left - right)


def test_results_of_two_runs_are_independent(compiled):
    x = rand(3, 6)
    first = compiled.run({"x": x})
    kept = {name: array.copy() for name, array in first.items()}
    second = compiled.run({"x": -x})
    for name, array in first.items():
        np.testing.assert_array_equal(array, kept[name])
        assert not np.shares_memory(array, second[name])
        array[...] = 7  # results can be written to, and belong to the caller
    assert_mlp(compiled, x)


def test_inputs_are_not_written_to(compiled):
    x = rand(4, 6)
    before = x.copy()
    x.flags.writeable = False
    compiled.run({"x": x})
    np.testing.assert_array_equal(x, before)


def run_in_threads(made: tvm_ext.CompiledModel, threads: int = 4, runs: int = 60) -> list:
    problems: list = []

    def work(seed: int) -> None:
        draw = np.random.default_rng(seed)
        try:
            for _ in range(runs):
                assert_mlp(made, draw.uniform(-1, 1, (int(draw.integers(1, 20)), 6)).astype("f4"))
        except (AssertionError, RuntimeError, ValueError) as error:
            problems.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return problems


@pytest.mark.extended
def test_one_model_runs_in_several_threads(compiled, tmp_path):
    assert run_in_threads(compiled) == []
    compiled.save(tmp_path / "model.tvmx")
    assert run_in_threads(tvm_ext.load(tmp_path / "model.tvmx")) == []


@pytest.mark.extended
@pytest.mark.parametrize("attempt", range(4 if ALL_CASES else 2))
def test_first_runs_in_several_threads_beside_a_save(attempt, tmp_path):
    made = tvm_ext.compile(mlp(), HOST)
    saving = threading.Thread(target=made.save, args=(tmp_path / "model.tvmx",))
    saving.start()
    assert run_in_threads(made, threads=6, runs=2) == []
    saving.join()
    assert_mlp(tvm_ext.load(tmp_path / "model.tvmx"), rand(2, 6))


@pytest.mark.extended
@pytest.mark.parametrize("shape", [(3, 6), ("N", 6)])
def test_nothing_is_left_to_the_first_run(shape, monkeypatch):
    made = tvm_ext.compile(mlp(), HOST, input_shapes={"x": shape})
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("tvm_ext.artifact.library.load_library", None)
    assert_mlp(made, rand(3, 6))


@pytest.mark.extended
@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_integers_are_not_divided_by_the_zeros_of_a_run_ahead(operator):
    given = [value(name, [4], TensorProto.INT32) for name in ("x", "by")]
    made = tvm_ext.compile(
        model([node(operator, ["x", "by"], ["y"])], given, [value("y", [4], TensorProto.INT32)]),
        HOST,
    )
    assert made.report.graph.may_divide_by_zero
    arrays = {"x": np.arange(4, dtype="int32"), "by": np.full(4, 2, "int32")}
    found = made.run(arrays)["y"]
    np.testing.assert_array_equal(found, [0, 0, 1, 1] if operator == "Div" else [0, 1, 0, 1])


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Python's threads take turns far more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.extended
@pytest.mark.usefixtures("many_switches")
def test_two_threads_may_compile_at_once():
    made: list = []
    workers = [
        threading.Thread(target=lambda: made.append(tvm_ext.compile(mlp(), HOST))) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(made) == 2
    for one in made:
        assert_mlp(one, rand(2, 6))


def test_a_saved_model_is_equal(compiled, tmp_path):
    x = rand(5, 6)
    before = compiled.run({"x": x})
    compiled.save(tmp_path / "model.tvmx")
    loaded = tvm_ext.load(tmp_path / "model.tvmx")
    after = loaded.run({"x": x})
    assert list(after) == list(before)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
        np.testing.assert_array_equal(compiled.run({"x": x})[name], array)
    assert (loaded.inputs, loaded.outputs) == (compiled.inputs, compiled.outputs)
    assert loaded.report == compiled.report
    assert loaded.kernel_calls() == compiled.kernel_calls()
    loaded.save(tmp_path / "again.tvmx")
    assert_mlp(tvm_ext.load(tmp_path / "again.tvmx"), x)


def test_the_report_comes_back_from_json_and_is_filled(compiled):
    report = compiled.report
    assert CompileReport.from_json(report.to_json()) == report
    assert [phase.name for phase in report.phases] == [
        "set up",
        "import",
        "graph passes",
        "lower and fuse",
        "schedule",
        "memory",
        "build",
        "link",
        "first run",
    ]
    assert report.inputs == ["x: float32['N', 6]"]
    assert report.graph.onnx_nodes == {"MatMul": 2, "Relu": 1}
    # Output channels may be padded to whole vectors.
    assert report.memory.weights_bytes >= W.nbytes + V.nbytes
    assert report.memory.dynamic
    assert {entry.name for entry in report.passes} >= {"GemmFusion", "LegalizeOps"}
    assert report.kernel_calls == len(compiled.kernel_calls())
    assert "first" in report.to_text()
    assert "<html" in report.to_html()


@pytest.mark.extended
def test_disabled_passes_stay_in_the_report():
    made = tvm_ext.compile(mlp(), HOST, disabled_passes=["GemmFusion"])
    (record,) = [entry for entry in made.report.passes if entry.name == "GemmFusion"]
    assert record.skipped == "disabled"
    assert_mlp(made, rand(2, 6))


@pytest.mark.extended
def test_dumps_cover_all_stages(tmp_path):
    tvm_ext.compile(mlp(), HOST, dump_ir=tmp_path / "dumps")
    names = sorted(path.name for path in (tmp_path / "dumps").iterdir())
    assert [int(name[:3]) for name in names] == list(range(len(names)))
    words = [name[4:-3] for name in names]
    assert words.index("GemmFusion") < words.index("LegalizeOps") < words.index("FuseTIR")


@pytest.mark.extended
def test_a_preset_that_fits_this_machine_runs():
    if resolve_target("cpu").architecture != "x86_64":
        pytest.skip("needs an x86-64 machine")
    made = tvm_ext.compile(mlp(), target="x86-64")
    assert made.report.target["name"] == "x86-64"
    assert_mlp(made, rand(3, 6))


@pytest.mark.extended
def test_another_architecture_compiles_but_does_not_run_here():
    other = "aarch64-neon" if resolve_target("cpu").architecture == "x86_64" else "x86-64"
    made = tvm_ext.compile(mlp(), target=other)
    for attempt in (made.run, made.profile):
        with pytest.raises(TargetError, match=f"compiled for .*{other}") as error:
            attempt({"x": rand(3, 6)})
        assert "\n" not in str(error.value)


@pytest.mark.extended
def test_a_description_and_a_target_of_tvm_are_taken():
    assert_mlp(tvm_ext.compile(mlp(), target=HOST), rand(2, 6))
    assert_mlp(tvm_ext.compile(mlp(), target=HOST.tvm_target()), rand(2, 6))
    assert_mlp(tvm_ext.compile(mlp(), target=tvm.target.Target("llvm")), rand(2, 6))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"target": "cpuu"}, TvmExtError),
        ({"opt_level": 4}, ConfigError),
        ({"disabled_passes": ["Nothing"]}, PassError),
        ({"disabled_passes": ["LegalizeOps"]}, PassError),
        ({"pass_config": {"LayoutPlanning": {"a": 1}}}, ConfigError),
        ({"input_shapes": {"y": [1, 6]}}, InputError),
        ({"input_shapes": {"x": [1, 7]}}, InputError),
        ({"input_shapes": {"x": [6]}}, InputError),
        ({"input_shapes": {"x": [0, 6]}}, InputError),
        ({"pass_config": {"LayoutPlanning": 3}}, ConfigError),
        ({"pass_config": ["LayoutPlanning"]}, ConfigError),
    ],
)
def test_wrong_arguments_are_named_in_one_line(arguments, error):
    with pytest.raises(error) as caught:
        tvm_ext.compile(mlp(), **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.extended
@pytest.mark.parametrize(
    "program",
    [
        "import tvm_ext",
        # In the last one as well.
        pytest.param(REGISTER, marks=pytest.mark.slow),
        f"{REGISTER}; import tvm_ext.passes, tvm_ext.api, tvm_ext.check.check, onnxruntime",
    ],
)
def test_an_interpreter_that_used_the_package_ends_well(program, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.extended
def test_what_is_imported_is_what_is_needed(abs_model_path, tmp_path):
    """The package imports no TVM, and a saved model runs without it, ONNX, passes and the like."""
    saved = tmp_path / "abs.tvmx"
    tvm_ext.compile(abs_model_path, HOST).save(saved)
    program = f"""
import sys, tvm_ext
dir(tvm_ext)
print("tvm" in sys.modules)
import numpy
model = tvm_ext.load({str(saved)!r})
model.run({{"x": numpy.zeros((2, 3), "float32")}})
unused = {_NOT_FOR_RUNS}
print("tvm" in sys.modules, sorted(unused & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n") == ["False", "False []", ""]


_NOT_FOR_RUNS = {
    *("jinja2", "onnx", "onnx_ir", "onnxscript", "rich", "scipy", "sympy", "xgboost"),
    *("tvm_ext.api", "tvm_ext.backends", "tvm_ext.onnx_frontend", "tvm_ext.relay_passes"),
}


def test_no_run_ahead_at_sizes_that_a_kernel_cannot_divide_by():
    """With a batch of one, each of two groups of output channels would have none."""
    x, w = value("x", ["b", 4, 6, 6]), value("w", ["b", 2, 3, 3])
    made = tvm_ext.compile(
        model([node("Conv", ["x", "w"], ["y"], group=2)], [x, w], [value("y", None)]),
        HOST,
        input_shapes={"w": ["m", 2, 3, 3], "x": ["b", 4, 6, 6]},
    )
    with pytest.raises(RunError):
        made.run({"x": rand(1, 4, 6, 6), "w": rand(1, 2, 3, 3)})
    assert made.run({"x": rand(1, 4, 6, 6), "w": rand(4, 2, 3, 3)})["y"].shape == (1, 4, 4, 4)
