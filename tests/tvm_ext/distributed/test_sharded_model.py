"""One model on two processes: results, files, the command line, and what happens when one ends."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from commands import refused, succeed
from onnx import TensorProto, helper, numpy_helper
from unoptimised import HOST

import tvm_ext
from tvm_ext.distributed import compile_sharded as module
from tvm_ext.distributed import disco_group
from tvm_ext.distributed.sharded_model import ShardedModel
from tvm_ext.errors import ArtifactError, BuildError, InputError, RunError, TargetError

NUMBERS = np.random.default_rng(0)
X = NUMBERS.standard_normal((4, 8), dtype=np.float32)


def mlp(batch: int | str = 4) -> onnx.ModelProto:
    weights = {
        "w1": NUMBERS.standard_normal((8, 16), dtype=np.float32),
        "w2": NUMBERS.standard_normal((16, 8), dtype=np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], "fc1"),
        helper.make_node("Relu", ["a"], ["h"], "relu"),
        helper.make_node("MatMul", ["h", "w2"], ["b"], "fc2"),
        helper.make_node("Add", ["b", "x"], ["y"], "add"),
    ]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, 8])] for name in ("x", "y")
    ]
    stored = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "mlp", *ends, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


MODEL, OPEN = mlp(), mlp("batch")


@pytest.fixture(scope="module")
def whole() -> np.ndarray:
    return tvm_ext.compile(MODEL, HOST).run({"x": X})["y"]


@pytest.fixture(scope="module")
def tensor_parallel() -> ShardedModel:
    model = tvm_ext.compile(MODEL, HOST, devices=2, shard="tensor")
    yield model
    model.close()


@pytest.fixture(scope="module")
def file(tensor_parallel: ShardedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sharded") / "two.tvmx"
    tensor_parallel.save(path)
    return path


def workers() -> list[psutil.Process]:
    return [
        one
        for one in psutil.Process().children(recursive=True)
        if "tvm_ext.distributed.disco_worker" in one.cmdline()
    ]


def test_two_processes_give_what_one_does(tensor_parallel: ShardedModel, whole: np.ndarray) -> None:
    for _ in range(3):
        found = tensor_parallel.run({"x": X})
        np.testing.assert_allclose(found["y"], whole, rtol=1e-5, atol=1e-5)
    assert len(workers()) == 1


def test_the_bytes_are_the_planned_ones(tensor_parallel: ShardedModel) -> None:
    tensor_parallel.run({"x": X})
    (planned,) = tensor_parallel.report.sharding.collectives
    assert tensor_parallel.exchanged == {"all-reduce": X.nbytes} == {planned.kind: planned.nbytes}


def test_results_are_written_to_a_callers_array(
    tensor_parallel: ShardedModel, whole: np.ndarray
) -> None:
    out = np.zeros((4, 8), np.float32)
    assert tensor_parallel.run({"x": X}, out={"y": out})["y"] is out
    np.testing.assert_allclose(out, whole, rtol=1e-5, atol=1e-5)


def shared_memories() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:tvm-ext")


@pytest.mark.extended
def test_a_saved_file_runs(file: Path, whole: np.ndarray) -> None:
    model, before = tvm_ext.load(file), shared_memories()
    np.testing.assert_allclose(model.run({"x": X})["y"], whole, rtol=1e-5, atol=1e-5)
    model.close()
    # A closed model starts again.
    np.testing.assert_allclose(model.run({"x": X})["y"], whole, rtol=1e-5, atol=1e-5)
    model.close()
    # Of a group that has ended no arrays stay, only what processes counted by.
    assert shared_memories() <= before + 2


@pytest.mark.extended
def test_an_open_batch_is_shared_and_has_to_divide(whole: np.ndarray) -> None:
    model = tvm_ext.compile(OPEN, HOST, devices=2, shard="data")
    for count in (4, 2, 8):
        inputs = {"x": np.resize(X, (count, 8))}
        np.testing.assert_allclose(
            model.run(inputs)["y"],
            tvm_ext.compile(OPEN, HOST).run(inputs)["y"],
            rtol=1e-5,
            atol=1e-5,
        )
    with pytest.raises(InputError, match="has size 3; expected a multiple of the 2 devices"):
        model.run({"x": X[:3]})
    model.close()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"devices": 3, "shard": "data"}, "the batch is of 4, no multiple of 3 devices"),
        ({"devices": 7, "shard": "tensor"}, "no axis can be split in 7 equal parts"),
        ({"devices": 2, "shard": {"fc9": 1}}, "is called 'fc9'"),
        ({"devices": 2, "shard": "columns"}, "shard is 'columns', which does not exist"),
        ({"devices": 0}, "0 devices were asked for; expected 1 to"),
        ({"devices": "2"}, "'2' devices were asked for; expected 1 to"),
        ({"devices": 2, "specialize": "auto"}, "specialize was given with 2 devices"),
        ({"devices": 2, "shard": {"fc1": "rows"}}, "or axes by pattern"),
        ({"devices": 2, "target": "nvidia-h100"}, "is not a CPU"),
    ],
)
def test_what_cannot_be_split_is_refused(options: dict, line: str) -> None:
    with pytest.raises(InputError, match=line) as refused:
        tvm_ext.compile(MODEL, **options)
    assert "\n" not in str(refused.value)


def test_a_batch_with_a_lower_bound_is_refused() -> None:
    with pytest.raises(InputError, match="the batch 'batch' is at least 2, and a device takes"):
        tvm_ext.compile(OPEN, input_shapes={"x": ("batch:2:8", 8)}, devices=2, shard="data")


@pytest.mark.extended
def test_a_process_that_cannot_be_started_is_one_line(
    file: Path, monkeypatch: pytest.MonkeyPatch, whole: np.ndarray
) -> None:
    def refuse(*_given: object, **_options: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    model, others = tvm_ext.load(file), workers()
    with monkeypatch.context() as patched:
        patched.setattr(disco_group.subprocess, "Popen", refuse)
        with pytest.raises(RunError, match="cannot be started"):
            model.run({"x": X})
    assert workers() == others
    np.testing.assert_allclose(model.run({"x": X})["y"], whole, rtol=1e-5, atol=1e-5)
    model.close()


@pytest.mark.slow
def test_patterns_of_a_pair_of_products(whole: np.ndarray) -> None:
    model = tvm_ext.compile(MODEL, HOST, devices=2, shard={"fc1": 1, "fc2": 0})
    np.testing.assert_allclose(model.run({"x": X})["y"], whole, rtol=1e-5, atol=1e-5)
    model.close()


@pytest.mark.extended
def test_a_rank_that_fails_to_compile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = module.with_options

    def of_first_device(pipeline: object, name: str, options: dict) -> object:
        if options["rank"] == 1:
            raise BuildError("no room; expected some: end other programs")
        return passes(pipeline, name, options)

    monkeypatch.setattr(module, "with_options", of_first_device)
    with pytest.raises(BuildError, match=r"^device 1 of 2: no room; expected some"):
        tvm_ext.compile(MODEL, devices=2, shard="tensor")


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_a_worker_that_is_killed(file: Path, stopped: bool, whole: np.ndarray) -> None:
    model = tvm_ext.load(file)
    model.run({"x": X})
    worker = psutil.Process(model._group.pids[0])
    others = [one for one in workers() if one != worker]
    begun = time.monotonic()
    if stopped:
        # It ends while the other one waits for it.
        worker.send_signal(signal.SIGSTOP)
        threading.Timer(0.3, worker.kill).start()
    else:
        worker.kill()
    with pytest.raises(RunError, match=r"device 1 of 2 has ended \(signal 9\)") as failed:
        model.run({"x": X})
    assert "\n" not in str(failed.value)
    assert time.monotonic() - begun < 10
    assert workers() == others
    np.testing.assert_allclose(model.run({"x": X})["y"], whole, rtol=1e-5, atol=1e-5)
    model.close()
    assert workers() == others


@pytest.mark.extended
def test_no_process_outlives_its_caller(file: Path) -> None:
    code = (
        "import os, numpy, tvm_ext.runtime\n"
        f"model = tvm_ext.runtime.load({str(file)!r})\n"
        "model.run({'x': numpy.zeros((4, 8), 'float32')})\n"
        "print(model._group.pids[0], flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    pid = int(done.stdout)
    end = time.monotonic() + 10
    while psutil.pid_exists(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)


def test_a_file_of_other_devices_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is for 2 devices, and 4 were asked for" in refused("run", file, "--devices", 4)
    # As mpiexec starts one of four.
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(TargetError, match="is for 2 devices, and mpiexec started 4 processes"):
        tvm_ext.load(file)


@pytest.mark.extended
def test_the_command_line_runs_it(file: Path, tmp_path: Path, whole: np.ndarray) -> None:
    given, result = tmp_path / "x.npz", tmp_path / "y.npz"
    np.savez(given, x=X)
    succeed("run", file, "--devices", 2, "--inputs", given, "--outputs", result)
    np.testing.assert_allclose(np.load(result)["y"], whole, rtol=1e-5, atol=1e-5)
    assert "expected both: add --devices 2" in refused("run", file, "--shard", "data")
    line = refused("compile", file, "--devices", 2, "--shard", "fc1=rows")
    assert "is no pattern with an axis" in line


def test_a_report_says_what_is_exchanged(tensor_parallel: ShardedModel) -> None:
    report = tensor_parallel.report
    assert "1 all-reduce" in report.to_text()
    data = json.loads(report.to_json())["sharding"]
    assert data["collectives"][0]["nbytes"] == X.nbytes
    again = type(report).from_json(report.to_json())
    assert again.sharding == report.sharding


def test_a_cut_file_is_refused(file: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.tvmx"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(ArtifactError, match="is damaged"):
        tvm_ext.load(damaged)


def test_what_one_device_has_is_refused(tensor_parallel: ShardedModel, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="expected a model for one to be profiled"):
        tensor_parallel.profile({"x": X})
    with pytest.raises(ArtifactError):
        tensor_parallel.export_library(tmp_path / "library")
    assert os.listdir(tmp_path) == []
