"""``tune`` writes records that ``compile`` uses, and explains where it cannot."""

import numpy as np
import onnx
import pytest
from operator_models import by_runtime
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import InputError, RecordsError, TuningError
from tvm_ext.passes.pipeline import load_pipelines
from tvm_ext.tuning.logs.record_folder import read_folder
from tvm_ext.tuning.logs.summary import best_schedules
from tvm_ext.tuning.logs.trial_log import read_trials
from tvm_ext.tuning.logs.verify import verify_records


def network(width: int = 32) -> onnx.ModelProto:
    """Two products with an activation between them, and a softmax."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="first"),
        node("Relu", ["a"], ["b"], name="relu"),
        node("MatMul", ["b", "v"], ["c"], name="second"),
        node("Softmax", ["c"], ["y"], name="softmax"),
    ]
    weights = {"w": rand(24, width), "v": rand(width, 16, seed=1)}
    return model(nodes, [value("x", [8, 24])], [value("y", [8, 16])], **weights)


@pytest.fixture(scope="module", autouse=True)
def workers(worker_stock):
    with worker_stock.lent():
        yield


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """The folder of records of the network, and what the session said."""
    folder = tmp_path_factory.mktemp("records")
    # How candidates are ranked is not looked at; the tests below rank them as the effort says.
    options = {"effort": "quick", "trials": 7, "cost_model_name": "random"}
    progress = tvm_ext.tune(network(), HOST, work_dir=folder, **options)
    return folder, progress


@pytest.fixture(scope="module")
def plain():
    """The network without records."""
    return tvm_ext.compile(network(), HOST)


@pytest.mark.extended
def test_all_kernels_hit(tuned, plain):
    folder, progress = tuned
    assert {kernel.state for kernel in progress.kernels} == {"done"}
    assert progress.trials_done == 7
    compiled = tvm_ext.compile(network(), HOST, records=folder, require_records=True)
    assert [kernel.tuned for kernel in compiled.report.kernels] == ["hit"] * len(progress.kernels)
    assert {kernel.source for kernel in compiled.report.kernels} == {"record"}
    x = rand(8, 24, seed=3)
    wanted = plain.run({"x": x})["y"]
    np.testing.assert_allclose(compiled.run({"x": x})["y"], wanted, rtol=1e-4, atol=1e-6)


def test_the_same_command_goes_on(tuned):
    folder, _ = tuned
    before = len(read_trials(folder).trials)
    again = tvm_ext.tune(network(), HOST, work_dir=folder, effort="quick", trials=7)
    assert again.trials_done == 0
    assert len(read_trials(folder).trials) == before


@pytest.mark.extended
def test_changed_graph_is_a_miss_with_the_reason(tuned):
    folder, _ = tuned
    wider = network(width=40)
    report = tvm_ext.compile(wider, HOST, records=folder).report
    missed = [kernel for kernel in report.kernels if kernel.tuned == "miss"]
    assert len(missed) == 2
    assert all("was tuned as part of another kernel" in kernel.miss for kernel in missed)
    assert all(kernel.source == "template" for kernel in missed)
    with pytest.raises(RecordsError, match=r"2 of 3 kernels have no record.*first.*tvm-ext tune"):
        tvm_ext.compile(wider, HOST, records=folder, require_records=True)


@pytest.mark.extended
def test_other_target_is_a_miss_with_the_reason(tuned):
    folder, _ = tuned
    report = tvm_ext.compile(network(), target="x86-64", records=folder).report
    assert {kernel.tuned for kernel in report.kernels} == {"miss"}
    assert all("records are for another target: " in kernel.miss for kernel in report.kernels)


def test_no_records_no_word_of_them(plain):
    assert {kernel.tuned for kernel in plain.report.kernels} == {""}


@pytest.mark.extended
def test_only_and_skip(tmp_path):
    progress = tvm_ext.tune(
        network(), HOST, work_dir=tmp_path, effort="quick", trials=2, only=["first*", "softmax"],
        skip=["softmax"],
    )  # fmt: skip
    assert [kernel.origins for kernel in progress.kernels] == [("first + relu",)]
    with pytest.raises(TuningError, match="no kernel or node matches 'third'"):
        tvm_ext.tune(network(), HOST, work_dir=tmp_path, only=["third"])


@pytest.mark.slow
def test_a_pipeline_of_ones_own(tmp_path):
    """Its kernels are tuned: without fusion the activation is one by itself."""
    fusing = ("AnnotateTIROpPattern", "FuseOperators", "FuseTIR")
    lower = [name for name in load_pipelines()["O3"].lower if name not in fusing]
    pipeline = tvm_ext.PassPipeline(lower=lower)
    options = {"work_dir": tmp_path, "effort": "quick", "trials": 2, "only": ["relu"]}
    progress = tvm_ext.tune(network(), HOST, pipeline=pipeline, **options)
    assert [kernel.origins for kernel in progress.kernels] == [("relu",)]
    report = tvm_ext.compile(network(), HOST, records=tmp_path, pipeline=pipeline).report
    assert {one.tuned for one in report.kernels if one.origins == ["relu"]} == {"hit"}


def test_refusals(tmp_path):
    with pytest.raises(TuningError, match="unknown effort 'quik'; nearest known: 'quick'"):
        tvm_ext.tune(network(), HOST, work_dir=tmp_path, effort="quik")
    with pytest.raises(TuningError, match=r"unknown cost model 'xgbost'.*'xgboost'"):
        tvm_ext.tune(network(), HOST, work_dir=tmp_path, cost_model_name="xgbost")
    with pytest.raises(TuningError, match="trials is 0; expected 1 or more"):
        tvm_ext.tune(network(), HOST, work_dir=tmp_path, trials=0)
    with pytest.raises(TuningError, match="l2 is 'lukewarm'; expected 'cold' or 'warm'"):
        tvm_ext.tune(network(), HOST, work_dir=tmp_path, l2="lukewarm")
    with pytest.raises(RecordsError, match="there is no folder of records"):
        tvm_ext.compile(network(), HOST, records=tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordsError, match="holds no records"):
        tvm_ext.compile(network(), HOST, records=tmp_path / "empty")


def dynamic_network() -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Softmax", ["m"], ["y"], axis=1)]
    return model(nodes, [value("x", ["N", 24])], [value("y", ["N", 32])], w=rand(24, 32))


@pytest.mark.extended
def test_kernels_of_dynamic_sizes_are_tuned_for_some(tmp_path):
    """Records say for which sizes, and any size runs with them."""
    dynamic = dynamic_network()
    options = {"work_dir": tmp_path, "effort": "quick", "trials": 6}
    progress = tvm_ext.tune(dynamic, HOST, sizes={"N": [1, 9]}, **options)
    assert progress.sizes == [{"N": 1}, {"N": 9}]
    assert {kernel.state for kernel in progress.kernels} == {"done"}
    trials = read_folder(tmp_path).trials
    assert all(one.sizes == progress.sizes for one in trials)
    assert {one.status for one in trials} == {"ok"}
    assert [[[1, 24], [24, 32], [1, 32]], [[9, 24], [24, 32], [9, 32]]] in [
        one.arguments for one in trials
    ]
    compiled = tvm_ext.compile(dynamic, HOST, records=tmp_path, require_records=True)
    assert {kernel.tuned for kernel in compiled.report.kernels} == {"hit"}
    for batch in (1, 5, 9, 70):
        x = rand(batch, 24)
        (y,) = by_runtime(dynamic, {"x": x})
        np.testing.assert_allclose(compiled.run({"x": x})["y"], y, rtol=1e-5, atol=1e-6)
    verified = list(verify_records(read_folder(tmp_path), HOST))
    assert {one.status for one in verified} <= {"ok", "slower"}


@pytest.mark.slow
def test_other_sizes_are_other_trials(tmp_path):
    """Times at different sizes are never compared: the last sizes count."""
    options = {"work_dir": tmp_path, "effort": "quick", "only": ["*softmax*"]}
    first = tvm_ext.tune(dynamic_network(), HOST, sizes={"N": [4000]}, trials=3, **options)
    again = tvm_ext.tune(dynamic_network(), HOST, sizes={"N": [2]}, trials=3, **options)
    (slow,), (quick,) = first.kernels, again.kernels
    assert quick.best_seconds < slow.best_seconds
    assert again.trials_done == first.trials_done > 0
    (best,) = best_schedules(read_folder(tmp_path))
    assert [call.sizes for call in best.nominal] == [{"N": 2}]
    assert best.record.seconds == pytest.approx(quick.best_seconds)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"M": [1]}, "'M' is not a dynamic dimension"),
        ({"N": [0]}, "0 for dimension 'N'"),
        ({"N": []}, "none for dimension 'N'"),
        ({"N": list(range(1, 10))}, "9 combinations; expected 8 at most"),
    ],
)
def test_sizes_that_are_refused(tmp_path, sizes, message):
    with pytest.raises(InputError, match=message):
        tvm_ext.tune(dynamic_network(), HOST, work_dir=tmp_path, sizes=sizes)
