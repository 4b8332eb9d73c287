"""On a real GPU: numbers, tensors of other libraries, CUDA graphs; with ``make test-cuda``.

Set TVM_EXT_CUDA_CORPUS to a folder of ONNX models to check those as well.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import tvm
from device_models import MODELS, attention, linear
from needs_gpu import NEEDS_GPU
from small_models import mlp, mlp_reference, rand

import tvm_ext
from tvm_ext.check.check import check_model
from tvm_ext.check.inputs import random_inputs

CORPUS = sorted(Path(os.environ.get("TVM_EXT_CUDA_CORPUS") or os.devnull).glob("*.onnx"))

pytestmark = NEEDS_GPU


@pytest.mark.parametrize("name", MODELS)
def test_numbers_are_onnx_runtimes(name: str) -> None:
    result = check_model(MODELS[name](), "cuda")
    assert result.ok, result.to_dict()


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
@pytest.mark.parametrize("name", ["mlp of any batch", "conv 3x3", "attention", "branches"])
def test_every_level_has_these_numbers(name: str, level: str) -> None:
    result = check_model(MODELS[name](), "cuda", opt_level=level)
    assert result.ok, result.to_dict()


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_models_of_the_corpus(path: Path) -> None:
    result = check_model(path, "cuda")
    assert result.ok, result.to_dict()


def test_graphs_change_nothing() -> None:
    proto = attention(128)
    plain = tvm_ext.compile(proto, target="cuda", disabled_passes=["CudaGraphs", "FuseOperators"])
    graphs = tvm_ext.compile(proto, target="cuda", disabled_passes=["FuseOperators"])
    assert graphs.report.device.graphs > 0
    for seed in range(4):
        inputs = random_inputs(graphs.inputs, seed)
        np.testing.assert_array_equal(graphs.run(inputs)["y"], plain.run(inputs)["y"])


def test_a_saved_model_runs(tmp_path) -> None:
    model = tvm_ext.compile(linear(128, 256, 192), target="cuda")
    model.save(tmp_path / "m.tvmx")
    inputs = random_inputs(model.inputs, 0)
    loaded = tvm_ext.load(tmp_path / "m.tvmx")
    np.testing.assert_array_equal(loaded.run(inputs)["y"], model.run(inputs)["y"])


def test_a_profile_waits_for_the_device() -> None:
    model = tvm_ext.compile(linear(4096, 4096, 4096), target="cuda")
    profile = model.profile(random_inputs(model.inputs, 0), repeat=3)
    assert {kernel.kernel for kernel in profile.kernels} == {k.name for k in model.report.kernels}
    # 137 GFLOP take longer than a launch on any GPU.
    assert profile.run_microseconds > 50


def test_runs_of_threads_do_not_mix() -> None:
    from concurrent.futures import ThreadPoolExecutor

    model = tvm_ext.compile(mlp(), target="cuda")

    def run(seed: int) -> bool:
        x = rand(seed + 1, 6, seed=seed)
        return np.allclose(model.run({"x": x})["z"], mlp_reference(x)["z"], atol=1e-4)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(40)))


def test_tensors_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    model = tvm_ext.compile(mlp(), target="cuda")
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            outputs = []
            for seed in range(20):
                x = torch.from_numpy(rand(64, 6, seed=seed)).cuda() * 2
                result = model.run({"x": x})["z"]
                assert isinstance(result, tvm.runtime.Tensor)
                taken = torch.from_dlpack(result)
                assert taken.data_ptr() == result.data_ptr()
                outputs.append(taken + 1)
            found = [output.cpu().numpy() for output in outputs]
        for seed, array in enumerate(found):
            wanted = mlp_reference(rand(64, 6, seed=seed) * 2)["z"] + 1
            np.testing.assert_allclose(array, wanted, rtol=1e-3, atol=1e-4)
    with pytest.raises(tvm_ext.TvmExtError, match=r"dense.*contiguous"):
        model.run({"x": torch.zeros(6, 4, device="cuda").t()})
    odd = torch.zeros(25, device="cuda")[1:].reshape(4, 6)
    assert model.run({"x": odd}, on_device=False)["z"].shape == (4, 3)


def test_arrays_of_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    model = tvm_ext.compile(mlp(), target="cuda")
    x = rand(16, 6)
    with cupy.cuda.Stream(non_blocking=True):
        result = cupy.from_dlpack(model.run({"x": cupy.asarray(x)})["z"])
        found = cupy.asnumpy(result)
    np.testing.assert_allclose(found, mlp_reference(x)["z"], rtol=1e-3, atol=1e-4)
