"""Names of former releases are read wherever a user may have written them."""

import json
from dataclasses import replace

import pytest
import tvm

from tvm_ext.configs.former_names import MACHINE_KINDS, PASSES, TEMPLATES
from tvm_ext.configs.loader import config_folder
from tvm_ext.hardware.backend import get_backend
from tvm_ext.hardware.targets import load_description, preset
from tvm_ext.passes import registry
from tvm_ext.passes.pipeline import PassPipeline, build_pipeline
from tvm_ext.report import CompileReport, Decision, KernelRecord, PassRecord
from tvm_ext.run_errors import FAILED_BRANCH
from tvm_ext.tir_schedules.backend import Scheduling
from tvm_ext.tir_schedules.recorded_schedule import recorded_schedule, template_trace
from tvm_ext.tir_schedules.template import FixedDecisions
from tvm_ext.tuning.logs.trial_log import parse_trial


@pytest.fixture
def kernel() -> tvm.tirx.PrimFunc:
    a = tvm.te.placeholder((4,), name="a")
    return tvm.te.create_prim_func([a, tvm.te.compute((4,), lambda i: a[i] + 1.0)])


def test_present_names_exist():
    schedulings = [get_backend(name).part(Scheduling) for name in ("cpu", "cuda", "wafer")]
    templates = {template.name for each in schedulings for template in each.recordable}
    assert set(TEMPLATES.values()) <= templates
    assert not set(TEMPLATES) & templates
    assert not set(PASSES) & {entry.name for entry in registry.all_entries()}


@pytest.mark.parametrize(("former", "present"), PASSES.items())
def test_passes(former, present):
    assert registry.get(former) is registry.get(present)
    pipeline = build_pipeline("O3", disabled_passes=[former], pass_config={former: {}})
    steps = [step for step in pipeline.graph if step.entry.name == present]
    assert steps
    assert all(step.skipped for step in steps)


def test_pipeline_files():
    pipeline = PassPipeline(graph=["DelayReshapes", "GemmFusion"])
    assert pipeline.graph == ["SinkReshapes", "GemmFusion"]


def test_neighbours():
    registry.register_pass(lambda mod: mod, name="behind", after="SoftmaxOfNarrow")
    try:
        names = [step.entry.name for step in build_pipeline("O3").graph]
        assert names[names.index("FuseCastIntoSoftmax") + 1] == "behind"
    finally:
        registry.remove("behind")


def test_a_users_pass_of_a_former_name_is_his():
    registry.register_pass(lambda mod: mod, name="DelayReshapes")
    try:
        assert registry.get("DelayReshapes").source == "user"
    finally:
        registry.remove("DelayReshapes")
    assert registry.get("DelayReshapes").name == "SinkReshapes"


def test_records(kernel):
    trace = template_trace(kernel, "mesh matmul", FixedDecisions({}))
    mod = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    assert recorded_schedule(mod, trace).template == "wafer matmul"


def test_lines_of_trials():
    line = {
        **{"format": 2, "run": "r", "kernel": "0" * 16, "kernel_name": "k", "candidate": "1" * 16},
        **{"template": "box suppression", "target": {}, "versions": {}, "host_cpu": ""},
        **{"status": "build", "time": ""},
    }
    trial = parse_trial(json.dumps(line))
    assert trial.template == "nms"
    assert json.loads(trial.to_line())["template"] == "nms"


def test_target_files(tmp_path):
    """Under its present kind too a mesh is the device that earlier records belong to."""
    assert MACHINE_KINDS == {"mesh": "wafer"}
    text = (config_folder("targets") / "wse2.toml").read_text(encoding="utf-8")
    file = tmp_path / "mine.toml"
    file.write_text(text.replace('kind = "wafer"', 'kind = "mesh"'), encoding="utf-8")
    assert load_description(file) == preset("wse2")
    assert preset("wse2").device == "wse2-a6b12b2a"


def test_saved_reports():
    former = KernelRecord(
        *("nms", 1, ["n"], "warp group contraction (rows=2)", "template", ""),
        *([], 1.0, 1.0, 1e-6),
    )
    decision = Decision("InheritOrigins", True, "n", "")
    step = PassRecord("InheritOrigins", "graph", 0.0, True, 1, 0, decisions=[decision])
    report = CompileReport("m.onnx", "O3", passes=[step], kernels=[former])
    saved = report.to_json().replace("may_divide_by_zero", "divides_by_data")
    read = CompileReport.from_json(saved)
    assert read.kernels == [replace(former, schedule="warpgroup contraction (rows=2)")]
    assert read.passes[0].name == read.passes[0].decisions[0].pass_name == "PropagateSpans"
    assert read.open_sizes == read.symbolic_sizes == []


def test_functions_that_saved_models_call():
    assert FAILED_BRANCH == "tvm_ext.failed_branch"
