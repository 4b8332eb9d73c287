"""Saved models are loaded and run without TVM's compiler, and beside it where it is there."""

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto
from small_models import assert_mlp, mlp, model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.configs.errors import ArtifactError

FLOAT, BFLOAT16, INT64 = TensorProto.FLOAT, TensorProto.BFLOAT16, TensorProto.INT64

# Loads a model, runs it on ones of a type and shape, and tells what of TVM is in the process.
RUN = """
import json, sys
import tvm_ext.runtime
path, out, dtype, shape = sys.argv[1:]
model = tvm_ext.runtime.load(path)
import ml_dtypes
import numpy as np
name = model.inputs[0].name
results = model.run({name: np.ones(json.loads(shape), np.dtype(dtype))})
np.savez(out, **{key: array.astype("float32") for key, array in results.items()})
maps = open("/proc/self/maps").read() if sys.platform == "linux" else ""
print(json.dumps([list(results), "tvm" in sys.modules or "libtvm_compiler" in maps]))
"""


def run_alone(path: Path, dtype: str, shape: list[int]) -> tuple[list, dict[str, np.ndarray]]:
    """What the process says, and the outputs as float32."""
    out = path.with_suffix(".npz")
    command = [sys.executable, "-c", RUN, str(path), str(out), dtype, json.dumps(shape)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), dict(np.load(out))


def saved(proto: object, path: Path) -> tvm_ext.CompiledModel:
    compiled = tvm_ext.compile(proto, HOST)
    compiled.save(path)
    return compiled


def test_a_model_runs_without_the_compiler(tmp_path: Path) -> None:
    compiled = saved(mlp(), tmp_path / "m.tvmx")
    said, outputs = run_alone(tmp_path / "m.tvmx", "float32", [5, 6])
    assert said == [["z", "a"], False]
    wanted = compiled.run({"x": np.ones((5, 6), "float32")})
    for name, array in outputs.items():
        np.testing.assert_array_equal(array, wanted[name])


def test_types_that_numpy_lacks_need_no_compiler_either(tmp_path: Path) -> None:
    proto = model(
        [node("Add", ["x", "x"], ["y"]), node("Cast", ["y"], ["z"], to=BFLOAT16)],
        [value("x", ["N", 3], BFLOAT16)],
        [value("z", ["N", 3], BFLOAT16)],
    )
    compiled = saved(proto, tmp_path / "m.tvmx")
    said, outputs = run_alone(tmp_path / "m.tvmx", "bfloat16", [2, 3])
    assert said == [["z"], False]
    np.testing.assert_array_equal(outputs["z"], np.full((2, 3), 2, "float32"))
    given = rand(2, 3).astype(ml_dtypes.bfloat16)
    result = compiled.run({"x": given})["z"]
    assert result.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(result, given + given)


@pytest.mark.extended
def test_functions_that_tvm_has_in_python_are_fetched(tmp_path: Path) -> None:
    proto = model([node("Unique", ["x"], ["y"])], [value("x", [4])], [value("y", [None])])
    saved(proto, tmp_path / "m.tvmx")
    said, outputs = run_alone(tmp_path / "m.tvmx", "float32", [4])
    assert said == [["y"], True]
    np.testing.assert_array_equal(outputs["y"], [1])


@pytest.mark.extended
def test_a_loaded_model_is_saved_again_whatever_became_of_its_file(tmp_path: Path) -> None:
    saved(mlp(), tmp_path / "m.tvmx")
    loaded = tvm_ext.load(tmp_path / "m.tvmx")
    saved(mlp(batch=2), tmp_path / "m.tvmx")
    loaded.save(tmp_path / "m.tvmx")
    again = tvm_ext.load(tmp_path / "m.tvmx")
    assert_mlp(again, rand(3, 6))
    # In place, which no program of ours does.
    with (tmp_path / "m.tvmx").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(ArtifactError, match=r"the file is damaged: model\.so"):
        again.save(tmp_path / "third.tvmx")
    assert_mlp(again, rand(3, 6))


@pytest.mark.extended
def test_a_loaded_model_reads_its_report_when_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "m.tvmx"
    compiled = tvm_ext.compile(mlp(), HOST, specialize=[{"N": 2}])
    compiled.save(path)
    loaded = tvm_ext.load(path)
    for one in (loaded, *loaded.specialized):
        assert one._report is None
        one.run({"x": np.ones((2, 6), "float32")})
        assert one._report is None
    assert loaded.specialized[0].report == compiled.specialized[0].report
    assert loaded.report == compiled.report
    assert loaded.report is loaded.report
