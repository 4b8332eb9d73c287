"""cuBLAS as a candidate of a session, with a stand-in: measured, written down, compiled with."""

from collections.abc import Iterator

import pytest
from cublas_stand_in import cublas_stand_in
from serial_gpu import gpu, serial_gpu

import tvm_ext
from tvm_ext.compiler.build import BuiltProgram, build_program
from tvm_ext.tir_schedules.backend import scheduling_of
from tvm_ext.tir_schedules.cuda.matmul.contraction import CudaContraction
from tvm_ext.tuning import runner as runner_pool
from tvm_ext.tuning import worker as worker_pool
from tvm_ext.tuning.cuda.presence import CudaDeviceFacts
from tvm_ext.tuning.logs.trial_log import read_trials
from tvm_ext.tuning.worker import WorkRaised

GPU = gpu()


class WorkerInThisProcess:
    """Does a worker's work in this process, which knows of the stand-in."""

    process_id = None

    def __init__(self, memory_bytes=None) -> None:
        pass

    def call(self, function, *arguments, timeout):
        try:
            return function(*arguments)
        except Exception as error:
            raise WorkRaised(type(error).__name__, str(error)) from error

    def stop(self) -> None:
        pass

    kill = stop


@pytest.fixture
def workers_here(monkeypatch) -> Iterator[None]:
    for module in (runner_pool, worker_pool):
        monkeypatch.setattr(module, "Worker", WorkerInThisProcess)
    # Products as loops, which this CPU can run.
    loops = [
        CudaContraction(described=True) if isinstance(template, CudaContraction) else template
        for template in scheduling_of(GPU).templates
    ]
    monkeypatch.setattr(scheduling_of(GPU), "templates", tuple(loops))
    found = CudaDeviceFacts(True, "NVIDIA A100", (8, 0))
    monkeypatch.setattr("tvm_ext.tuning.cuda.presence.checked_gpu", lambda machine, servers: found)


def product_model(folder) -> str:
    """relu(x @ w + b)."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(0)
    weights = {"w": (64, 48), "b": (48,)}
    constants = [
        numpy_helper.from_array(generator.random(shape).astype("float32"), name)
        for name, shape in weights.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    kind = TensorProto.FLOAT
    x, y = (
        helper.make_tensor_value_info(name, kind, shape)
        for name, shape in (("x", [32, 64]), ("y", [32, 48]))
    )
    graph = helper.make_graph(nodes, "product", [x], [y], constants)
    path = folder / "product.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return str(path)


@pytest.fixture
def built(monkeypatch) -> list[BuiltProgram]:
    """The programs that were built since."""
    programs: list[BuiltProgram] = []

    def build(*arguments) -> BuiltProgram:
        programs.append(build_program(*arguments))
        return programs[-1]

    monkeypatch.setattr("tvm_ext.api.build_program", build)
    return programs


def test_a_library_is_measured_and_used_where_it_was_fastest(workers_here, tmp_path, built) -> None:
    model = product_model(tmp_path)
    records = tmp_path / "records"
    with cublas_stand_in() as asked, serial_gpu():
        progress = tvm_ext.tune(model, GPU, work_dir=records, trials=5, l2="warm")
        assert progress.notes == []
        trials = read_trials(records).trials
        statuses = {trial.template: (trial.status, trial.message) for trial in trials}
        assert statuses["cublas"] == ("ok", "")
        assert set(asked) == {"cublas.matmul_bias_relu"}
        (kernel,) = progress.kernels
        assert kernel.best_schedule == "cublas"
        compiled = tvm_ext.compile(model, GPU, records=records, require_records=True)
        (used,) = compiled.report.kernels
        assert (used.schedule, used.source, used.tuned) == ("cublas", "record", "hit")
        # The library's module is beside the kernels', in what is run and saved.
        (program,) = built
        (kernels,) = [one for one in program.executable.mod.imports if one.imports]
        assert [one.kind for one in kernels.imports] == ["llvm"]
    without = tvm_ext.compile(model, GPU, records=records)
    (other,) = without.report.kernels
    assert (other.source, other.tuned) == ("template", "miss")
    assert "this TVM was built without cuBLAS" in other.miss
