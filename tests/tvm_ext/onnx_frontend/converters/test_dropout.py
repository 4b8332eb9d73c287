"""Dropout in inference, and in training."""

import numpy as np
import onnx
import pytest
from one_model import in_one_model, run_model
from operator_models import array_info, run_at_levels
from small_models import model, node

import tvm_ext
from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend import import_model


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("opset", [9, 11, 12, 17])
def test_dropout_is_its_input(opset: int) -> None:
    nodes = [node("Dropout", ["x"], ["a"]), node("Relu", ["a"], ["y"])]
    proto = model(nodes, [array_info("x", [3])], [array_info("y", [3])], opset)
    assert "dropout" not in import_model(proto).mod.script()
    for outputs in run_at_levels(proto, x=np.array([-1, 0, 2], np.float32)):
        np.testing.assert_array_equal(outputs["y"], [0, 0, 2])


def test_dropout_that_returns_its_input_and_a_mask() -> None:
    outputs = [array_info("y", [2, 3]), array_info("mask", [2, 3], np.bool_)]
    proto = model([node("Dropout", ["x"], ["y", "mask"])], [array_info("x", [2, 3])], outputs)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for found in run_at_levels(proto, x=x):
        np.testing.assert_array_equal(found["y"], x)
        np.testing.assert_array_equal(found["mask"], np.ones((2, 3), np.bool_))


def training_model(
    x: np.ndarray, stored: dict, given: dict, shape: list | None = None, **attributes: int
) -> tuple[onnx.ModelProto, dict]:
    """A Dropout whose ratio and mode are stored or inputs, and what it is fed."""
    feeds = {"x": x, **given}
    infos = [array_info("x", shape or list(x.shape), x.dtype)]
    infos += [array_info(name, list(a.shape), a.dtype) for name, a in given.items()]
    outputs = [array_info("y", shape or list(x.shape), x.dtype)]
    outputs.append(array_info("mask", shape or list(x.shape), np.bool_))
    names = ["x", "ratio" if "ratio" in {**stored, **given} else "", "training"]
    drop = node("Dropout", names, ["y", "mask"], name="drop", **attributes)
    return model([drop], infos, outputs, **stored), feeds


ON = {"training": np.array(True)}


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("from_run", ["", "ratio", "training", "ratio training"])
def test_dropout_in_training_drops_a_share_and_scales_the_rest(from_run: str, dtype: type) -> None:
    x = np.linspace(1, 2, 6000, dtype=dtype).reshape(2, 3000)
    values = {"ratio": np.float32(0.25), **ON}
    given = {name: values[name] for name in from_run.split()}
    stored = {name: values[name] for name in values if name not in given}
    proto, feeds = training_model(x, stored, given, shape=["n", 3000], seed=7)
    found = run_model(proto, feeds)
    mask = found["mask"]
    assert mask.shape == x.shape
    assert mask.dtype == np.bool_
    assert abs(mask.mean() - 0.75) < 0.03
    assert found["y"].dtype == dtype
    wanted = np.where(mask, x.astype(np.float64) / 0.75, 0)
    np.testing.assert_allclose(found["y"], wanted, rtol=2e-3 if dtype == np.float16 else 1e-6)


@pytest.mark.extended
def test_dropout_with_a_ratio_of_0_is_its_input() -> None:
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)
    for given in ({}, {"ratio": np.float32(0)}):
        stored = ON if given else {"ratio": np.float32(0), **ON}
        proto, feeds = training_model(x, stored, given)
        for found in run_at_levels(proto, **feeds):
            np.testing.assert_array_equal(found["y"], x)
            assert found["mask"].all()


def test_dropout_whose_mode_the_run_turns_off_is_its_input() -> None:
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)
    proto, feeds = training_model(x, {}, {"training": np.array(False)})
    for found in run_at_levels(proto, **feeds):
        np.testing.assert_array_equal(found["y"], x)
        assert found["mask"].all()


def test_the_seed_decides_what_is_dropped_and_the_default_ratio_is_a_half() -> None:
    x = np.ones(4000, np.float32)
    masks = []
    for seed in (1, 1, 2):
        proto, feeds = training_model(x, ON, {}, seed=seed)
        masks.append(run_model(proto, feeds, "O0")["mask"])
    assert abs(masks[0].mean() - 0.5) < 0.03
    np.testing.assert_array_equal(masks[0], masks[1])
    assert (masks[0] != masks[2]).any()


def test_a_ratio_of_1_is_refused() -> None:
    proto, _ = training_model(np.ones(3, np.float32), {"ratio": np.float32(1), **ON}, {})
    with pytest.raises(ModelError, match=r"Dropout node 'drop' .*its ratio is 1; expected"):
        tvm_ext.compile(proto)
