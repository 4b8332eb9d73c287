"""Models above protobuf's limit: large weights stay in their files until they are imported."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from operator_models import by_runtime
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend import prepare_model
from tvm_ext.onnx_frontend import weights as stored_weights


@pytest.fixture
def low_limit(monkeypatch) -> None:
    """Limits that a small model exceeds."""
    monkeypatch.setattr(stored_weights, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(stored_weights, "LARGE_BYTES", 500)


def written(folder: Path, weight: np.ndarray) -> Path:
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Reshape", ["p", "sizes"], ["y"])]
    weights = {"w": weight, "sizes": np.array([-1], np.int64)}
    proto = model(nodes, [value("x", ["n", 16])], [value("y", ["m"])], **weights)
    onnx.save(
        proto, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    return folder / "m.onnx"


def test_same_numbers(tmp_path, low_limit) -> None:
    path = written(tmp_path, rand(16, 32))
    found = tvm_ext.compile(path, HOST)
    assert [spec.name for spec in found.inputs] == ["x"]
    feeds = {"x": rand(3, 16)}
    wanted = by_runtime(onnx.load(path), feeds)[0]
    np.testing.assert_allclose(found.run(feeds)["y"], wanted, rtol=1e-5, atol=1e-5)


def test_only_large_weights_stay_behind(tmp_path, low_limit) -> None:
    ready = prepare_model(written(tmp_path, rand(16, 32)))
    assert [*ready.stored.tensors] == ["w"]
    (weight,) = (t for t in ready.prepared.graph.initializer if t.name == "w")
    assert not weight.raw_data
    assert [v.name for v in ready.prepared.graph.input] == ["x"]


def test_types_are_inferred_without_large_values(low_limit) -> None:
    weights = {"w": rand(16, 32), "sizes": np.array([-1], np.int64)}
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Reshape", ["p", "sizes"], ["y"])]
    proto = model(nodes, [value("x", ["n", 16])], [value("y", ["m"])], **weights)
    before = proto.SerializeToString()
    with stored_weights.without_large_values(proto.graph):
        assert [bool(one.raw_data) for one in proto.graph.initializer] == [False, True]
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    assert proto.SerializeToString() == before


def test_a_small_model_is_read_whole(tmp_path) -> None:
    assert not prepare_model(written(tmp_path, rand(16, 32))).stored.tensors


def test_nan_and_missing_values_are_refused(tmp_path, low_limit) -> None:
    weight = rand(16, 32)
    weight[3, 4] = np.nan
    path = written(tmp_path, weight)
    with pytest.raises(ModelError, match="'w' holds 1 NaN of 512 values"):
        tvm_ext.compile(path)
    (tmp_path / "w.bin").write_bytes(b"short")
    with pytest.raises(ModelError, match="expected") as caught:
        tvm_ext.compile(path)
    assert "\n" not in str(caught.value)
