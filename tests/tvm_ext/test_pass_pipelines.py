"""Pipelines of users: composed in Python or in a file, and refused in one line."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from small_models import model, node, rand, value
from thoroughness import one_in
from unoptimised import HOST

import tvm_ext
from tvm_ext.cli.options import CompileOptions
from tvm_ext.compiled_model import CompiledModel
from tvm_ext.compiler.program_cache import program_key
from tvm_ext.errors import ConfigError, InputError, PassError, TvmExtError
from tvm_ext.passes.pipeline import STAGES, build_pipeline, load_pipelines, with_fast_math

DOCS = Path(__file__).parents[2] / "docs/reference/passes.md"
O3 = {stage: getattr(load_pipelines()["O3"], stage) for stage in STAGES}
WEIGHTS = {"w": rand(64, 64), "f": rand(8, 8, 3, 3, seed=1)}


def layers() -> onnx.ModelProto:
    """A product with a Relu, and a convolution."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Relu", ["a"], ["y"]),
        node("Conv", ["m", "f"], ["z"]),
    ]
    inputs = [value("x", [16, 64]), value("m", [1, 8, 6, 6])]
    return model(nodes, inputs, [value("y", [16, 64]), value("z", [1, 8, 4, 4])], **WEIGHTS)


def outputs(compiled: CompiledModel) -> list[np.ndarray]:
    return list(compiled.run({"x": rand(16, 64, seed=2), "m": rand(1, 8, 6, 6)}).values())


def without(stage: str, name: str) -> dict[str, list[str]]:
    return {stage: [one for one in O3[stage] if one != name]}


def decisions(compiled: CompiledModel, name: str) -> list[str]:
    return [d.reason for r in compiled.report.passes if r.name == name for d in r.decisions]


@pytest.fixture(scope="module")
def usual():
    """The model by the usual pipeline."""
    return tvm_ext.compile(layers(), HOST)


@pytest.fixture(scope="module")
def usual_outputs(usual):
    """What the usual pipeline's program computes."""
    return outputs(usual)


@pytest.mark.extended
def test_the_example_of_the_documentation(tmp_path, monkeypatch, capsys, usual_outputs):
    section = DOCS.read_text("utf-8").partition("## Your own pipeline")[2].partition("\n## ")[0]
    file = re.search(r"```toml\n(.*?)```", section, re.S)[1]
    script = re.search(r"```python\n(.*?)```", section, re.S)[1]
    monkeypatch.chdir(tmp_path)
    Path("stated.toml").write_text(file, "utf-8")
    onnx.save(layers(), "model.onnx")
    names: dict[str, CompiledModel] = {}
    exec(script, names)
    assert "rows_0=4" in capsys.readouterr().out
    for compiled in (names["from_file"], names["in_python"]):
        assert "ThreadsForLargeRuns" not in [record.name for record in compiled.report.passes]
        for one, other in zip(outputs(compiled), usual_outputs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert names["from_file"].report.opt_level == "stated tiles"
    gpu = tvm_ext.compile(layers(), "nvidia-a100", pipeline="stated.toml")
    assert any("stages=3" in reason for reason in decisions(gpu, "ScheduleKernels"))


def test_what_a_kernel_cannot_follow_is_in_the_log():
    stated = {"decisions": {"register tile": {"rows_0": 3, "depth": 8}}}
    own = tvm_ext.PassPipeline(options={"ScheduleKernels": stated})
    found = decisions(tvm_ext.compile(layers(), HOST, pipeline=own), "ScheduleKernels")
    assert any(reason.startswith("rows_0=3 is none of 1, 2,") for reason in found)
    assert any(reason.startswith("there is no decision depth, only columns") for reason in found)


@pytest.mark.extended
def test_a_layout_can_be_stated():
    def conversions(layout: str) -> bool:
        own = tvm_ext.PassPipeline(options={"LayoutPlanning": {"layout": layout}})
        compiled = tvm_ext.compile(layers(), HOST, pipeline=own)
        outputs(compiled)
        return any("channels last" in reason for reason in decisions(compiled, "LayoutPlanning"))

    assert conversions("channels_last")
    assert not conversions("channels_first")


@pytest.mark.extended
@pytest.mark.parametrize(
    ("stage", "name"),
    one_in(
        2,
        [
            *(("schedule", name) for name in ("MarkConstantParameters", "ScheduleKernels")),
            *(
                ("memory", name)
                for name in ("RoundStorage", "KillAfterLastUse", "DropResultChecks")
            ),
            *(("tile", "PropagateNan"), ("graph", "LayoutPlanning"), ("lower", "EmptyConstants")),
        ],
    ),
)
def test_a_pass_that_is_no_must_can_be_left_out(stage, name, usual_outputs):
    own = tvm_ext.PassPipeline(**without(stage, name))
    compiled = tvm_ext.compile(layers(), HOST, pipeline=own)
    for one, other in zip(outputs(compiled), usual_outputs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_passes_can_be_in_another_order():
    order = ["ThreadsForLargeRuns", "PropagateNan", "VectorMath"]
    compiled = tvm_ext.compile(layers(), HOST, pipeline=tvm_ext.PassPipeline(tile=order))
    assert [r.name for r in compiled.report.passes if r.level == "tile"] == order


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        (without("lower", "LegalizeOps"), "no pass 'LegalizeOps'"),
        (without("schedule", "PackWeights"), "no pass 'PackWeights'"),
        (without("memory", "ShareStorage"), "no pass 'ShareStorage'"),
        ({"schedule": O3["schedule"][::-1]}, "before it"),
        ({"memory": O3["memory"][::-1]}, "before it"),
        (without("lower", "FuseOperators"), "'FuseTIR' of the pipeline needs 'FuseOperators'"),
        ({"tile": ["LayoutPlanning"]}, "of level graph stands in stage 'tile'"),
        ({"tile": ["VectorMaths"]}, "nearest known: 'VectorMath'"),
        ({"options": {"VectorMath": {"fast": True}}}, "no option 'fast'"),
        ({"options": {"LayoutPlanning": {"layout": "NHWC"}}}, "expected 'channels_first'"),
        ({"options": {"ScheduleKernels": {"decisions": {"tile": {}}}}}, "which does not exist"),
        (
            {"options": {"ScheduleKernels": {"decisions": {"register tile": {"rows_0": "4"}}}}},
            "expected integers",
        ),
    ],
)
def test_a_broken_rule_is_named_in_one_line_before_anything_runs(stages, words):
    with pytest.raises((PassError, ConfigError)) as raised:
        tvm_ext.compile("no such file.onnx", pipeline=tvm_ext.PassPipeline(**stages))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [("tile = 3", "'tile'"), ("tiles = []", "nearest known: 'tile'"), ("tile = [", "TOML")],
)
def test_a_file_that_is_no_pipeline_is_named(tmp_path, text, words):
    path = tmp_path / "own.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=r"own\.toml") as raised:
        tvm_ext.compile(layers(), HOST, pipeline=path)
    assert words in str(raised.value)


def test_a_gpu_needs_schedules():
    with pytest.raises(TvmExtError, match="'ScheduleKernels' is left out"):
        tvm_ext.compile(layers(), "nvidia-a100", disabled_passes=["ScheduleKernels"])


def test_the_report_counts_after_each_pass(usual):
    report = usual.report
    after = {record.name: record.after for record in report.passes}
    assert (after["GemmFusion"].operators, after["GemmFusion"].kernels) == (3, 0)
    assert after["ScheduleKernels"].kernels == len(report.kernels)
    assert after["LegalizeOps"].intermediate_bytes > after["FuseTIR"].intermediate_bytes > 0


def times_zero() -> onnx.ModelProto:
    nodes = [node("Mul", ["x", "zero"], ["a"]), node("Add", ["a", "x"], ["y"])]
    return model(nodes, [value("x", [4])], [value("y", [4])], zero=np.zeros((), np.float32))


def test_fast_math_is_an_option_of_the_pass_that_pass_config_can_take_back():
    x = {"x": np.array([1, -2, np.inf, np.nan], np.float32)}
    exact, fast = (tvm_ext.compile(times_zero(), HOST, fast_math=on) for on in (False, True))
    assert decisions(exact, "AlgebraicSimplification") == []
    assert decisions(fast, "AlgebraicSimplification")[0] == "x * 0.0 -> 0.0"
    np.testing.assert_array_equal(exact.run(x)["y"], [1, -2, np.nan, np.nan])
    np.testing.assert_array_equal(fast.run(x)["y"], [1, -2, np.inf, np.nan])

    off = {"AlgebraicSimplification": {"fast_math": False}}
    again = tvm_ext.compile(times_zero(), HOST, fast_math=True, pass_config=off)
    assert decisions(again, "AlgebraicSimplification") == []


def test_fast_math_is_part_of_the_key_of_the_cache():
    keys = {
        program_key(times_zero(), HOST, build_pipeline(pass_config=config), None, ())
        for config in (None, with_fast_math(None))
    }
    assert None not in keys
    assert len(keys) == 2


def test_the_command_line_hands_fast_math_on():
    chosen = CompileOptions.parsed(fast_math=True)
    assert chosen.keywords()["pass_config"] == with_fast_math(None)
    assert CompileOptions.parsed().keywords()["pass_config"] is None
    with pytest.raises(InputError, match="--fast-math given for"):
        chosen.require_none(Path("model.tvmx"))
