"""Numbers in a model that no machine can follow, files that it must not read, and NaN."""

import os
from pathlib import Path

import numpy as np
import pytest
from one_model import in_one_model, program, run_model
from onnx import TensorProto, helper
from small_models import model as model_of
from small_models import node
from small_models import value as tensor
from unoptimised import HOST

import tvm_ext
from tvm_ext.check.reference import run_reference
from tvm_ext.compiler.backend import MEMORY_LIMIT
from tvm_ext.errors import BuildError, ModelError, TvmExtError
from tvm_ext.onnx_frontend.weights import without_weights

TERA = 1 << 40


def total_of(operator, inputs, **stored):
    """The sum of what one node makes of constants or of ``x``, float32[2]; y has no shape."""
    nodes = [
        node(operator, inputs, ["made"], "maker"),
        node("Cast", ["made"], ["numbers"], to=TensorProto.FLOAT),
        node("ReduceSum", ["numbers"], ["sum"], keepdims=0),
        node("ReduceSum", ["x"], ["whole"], keepdims=0),
        node("Add", ["sum", "whole"], ["y"]),
    ]
    return model_of(nodes, [tensor("x", [2])], [tensor("y", [])], **stored)


# Sizes -------------------------------------------------------------------------------------------


FILLS = {
    "ConstantOfShape": (["sizes"], {"sizes": [TERA]}),
    "Expand": (["x", "sizes"], {"sizes": [TERA, 2]}),
    "Range": (["begin", "end", "one"], {"begin": 0, "end": TERA, "one": 1}),
    "Tile": (["x", "sizes"], {"sizes": [TERA]}),
    "Pad": (["x", "sizes"], {"sizes": [0, TERA]}),
    "Resize": (["x", "", "", "sizes"], {"sizes": [TERA]}),
    "OneHot": (["at", "depth", "pair"], {"at": [1], "depth": TERA, "pair": np.float32([0, 1])}),
}


@pytest.mark.parametrize("operator", FILLS)
def test_a_terabyte_asked_for_by_constants(operator):
    inputs, stored = FILLS[operator]
    with pytest.raises(ModelError, match=r"'maker'|a Range has"):
        tvm_ext.compile(total_of(operator, inputs, **stored), opt_level="O0")


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("operator", FILLS)
def test_the_same_with_few_elements(operator):
    inputs, stored = FILLS[operator]
    small = {
        k: np.where(np.equal(v, TERA), 3, v).astype(np.asarray(v).dtype) for k, v in stored.items()
    }
    model = total_of(operator, inputs, **small)
    x = np.float32([2, 5])
    found = run_model(model, {"x": x}, "O0")["y"]
    np.testing.assert_allclose(found, run_reference(model, {"x": x})["y"], rtol=1e-6)


def test_more_steps_than_64_bits_count():
    end = (1 << 63) - 1
    with pytest.raises(ModelError, match="a Range has"):
        tvm_ext.compile(total_of("Range", ["begin", "end", "one"], begin=-5, end=end, one=1))


@pytest.mark.extended
@pytest.mark.parametrize("count", [(1 << 20) + 3, 1 << 10])
def test_long_range_and_one_hot(count):
    x = np.float32([1, 2])
    steps = total_of("Range", ["begin", "end", "step"], begin=7, end=7 - 2 * count, step=-2)
    found = tvm_ext.compile(steps, HOST, opt_level="O0").run({"x": x})["y"]
    assert found == pytest.approx(3 + count * (8 - count), rel=1e-4)
    pair = np.float32([0, 5])
    hot = total_of("OneHot", ["at", "depth", "pair"], at=[1, -1], depth=count, pair=pair)
    assert tvm_ext.compile(hot, HOST, opt_level="O0").run({"x": x})["y"] == 13


def test_memory_limit(monkeypatch):
    model = model_of(
        [node("Tile", ["x", "n"], ["y"])], [tensor("x", [1 << 20])], [tensor("y", [1 << 23])], n=[8]
    )
    monkeypatch.setenv(MEMORY_LIMIT, "0.01")
    with pytest.raises(BuildError, match=rf"needs 32\.0 MiB.*at most 10\.2 MiB.*{MEMORY_LIMIT}"):
        tvm_ext.compile(model, opt_level="O0")
    monkeypatch.setenv(MEMORY_LIMIT, "much")
    with pytest.raises(BuildError, match="'much'; expected a number"):
        tvm_ext.compile(model, opt_level="O0")
    monkeypatch.delenv(MEMORY_LIMIT)
    x = np.arange(1 << 20, dtype=np.float32)
    np.testing.assert_array_equal(
        tvm_ext.compile(model, HOST, opt_level="O0").run({"x": x})["y"], np.tile(x, 8)
    )


# Loops -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [["trips"], [""]], ids=["many", "endless"])
def test_loop_that_does_not_end(count):
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Neg", ["v"], ["w"])],
        "body",
        [tensor("n", [], TensorProto.INT64), tensor("go", [], TensorProto.BOOL), tensor("v", [2])],
        [tensor("on", [], TensorProto.BOOL), tensor("w", [2])],
    )
    loop = node("Loop", [*count, "", "x"], ["y"], "again", body=body)
    model = model_of([loop], [tensor("x", [2])], [tensor("y", [2])], trips=1 << 40)
    with pytest.raises(ModelError, match=r"'again' has .* iterations"):
        tvm_ext.compile(model)


# Attributes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [2, -1])
def test_flag_of_another_value(value):
    mean = node("ReduceMax", ["x"], ["y"], "largest", keepdims=value)
    model = model_of([mean], [tensor("x", [2])], [tensor("y", None)])
    with pytest.raises(ModelError, match=f"'largest' has keepdims {value}; expected 0 or 1"):
        tvm_ext.compile(model)


# External data -----------------------------------------------------------------------------------


def model_with_data_at(folder, location):
    """A model in ``folder`` whose weights are said to be at ``location``."""
    model = model_of(
        [node("Add", ["x", "w"], ["y"])], [tensor("x", [4])], [tensor("y", [4])], w=np.ones(4, "f4")
    )
    stored = model.graph.initializer[0]
    stored.ClearField("raw_data")
    stored.data_location = TensorProto.EXTERNAL
    stored.external_data.add(key="location", value=str(location))
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("where", ["above", "absolute", "link", "through", "none", "folder"])
def test_external_data_out_of_the_folder(tmp_path, where):
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(16))
    (folder / "link").symlink_to(secret)
    locations = {
        "above": "../secret",
        "absolute": secret,
        "link": "link",
        "through": "inner/../../secret",
        "none": "absent",
        "folder": "inner",
    }
    path = model_with_data_at(folder, locations[where])
    with pytest.raises(ModelError, match="external data cannot be loaded") as caught:
        tvm_ext.compile(path)
    assert len(str(caught.value).splitlines()) == 1


def test_external_data_in_the_folder(tmp_path):
    (tmp_path / "weights").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    compiled = tvm_ext.compile(model_with_data_at(tmp_path, "weights"), HOST, opt_level="O0")
    assert compiled.run({"x": np.ones(4, np.float32)})["y"].tolist() == [1, 2, 3, 4]


def in_cache(root: Path, weights: Path) -> Path:
    """A model as Hugging Face's cache has it, whose weights are a link to ``weights``."""
    folder = root / "snapshots" / "revision" / "onnx"
    (root / "blobs").mkdir(parents=True)
    folder.mkdir(parents=True)
    model_with_data_at(root / "blobs", "model.onnx_data").rename(root / "blobs" / "hash")
    (folder / "model.onnx").symlink_to("../../../blobs/hash")
    (folder / "model.onnx_data").symlink_to(weights)
    return folder / "model.onnx"


def test_links_within_a_cache(tmp_path):
    path = in_cache(tmp_path, Path("../../../blobs/other"))
    (tmp_path / "blobs" / "other").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    compiled = tvm_ext.compile(path, HOST, opt_level="O0")
    assert compiled.run({"x": np.ones(4, np.float32)})["y"].tolist() == [1, 2, 3, 4]
    assert without_weights(path).graph.initializer[0].raw_data


def test_links_out_of_a_cache(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(16))
    with pytest.raises(ModelError, match="is outside of the model's folder"):
        tvm_ext.compile(in_cache(tmp_path / "cache", secret))


def test_a_pipe_is_no_model(tmp_path):
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="is a device or a pipe; expected an ONNX file"):
        tvm_ext.compile(tmp_path / "model.onnx")


# Values ------------------------------------------------------------------------------------------


STRANGE = np.float32([[np.nan, 1, -2], [-np.inf, -np.inf, -np.inf], [np.inf, 0, np.nan]])


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("opt_level", ["O0", "O3"])
@pytest.mark.parametrize(
    "operator", ["Relu", "HardSigmoid", "Elu", "Selu", "Sign", "ThresholdedRelu"]
)
def test_nan_goes_where_onnx_runtime_sends_it(operator, opt_level):
    values = [tensor("x", [3, 3])], [tensor("y", [3, 3])]
    model = model_of([node(operator, ["x"], ["y"])], *values)
    fed = {"x": STRANGE}
    found = run_model(model, fed, opt_level)["y"]
    np.testing.assert_allclose(found, run_reference(model, fed)["y"], rtol=1e-5)


@in_one_model
@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_place_of_the_largest_is_in_the_tensor(operator, last):
    found = node(operator, ["x"], ["y"], axis=1, select_last_index=last)
    model = model_of([found], [tensor("x", [3, 3])], [tensor("y", None, TensorProto.INT64)])
    compiled = program(model, "O0")
    for x in (STRANGE, -STRANGE, np.full((3, 3), np.nan, np.float32)):
        places = compiled.run({"x": x})["y"]
        assert ((places >= 0) & (places < 3)).all()


# Expand ------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize(("rows", "wanted"), [(4, 1), (1, 3), (3, 3), (4, 3)])
def test_expand_between_sizes_that_the_run_knows(rows, wanted):
    """The result takes the other side's size where one is 1; TVM's took the target's."""
    nodes = [node("Shape", ["like"], ["sizes"]), node("Expand", ["x", "sizes"], ["y"])]
    inputs = [tensor("x", ["N", 1]), tensor("like", ["M", 2])]
    compiled = tvm_ext.compile(model_of(nodes, inputs, [tensor("y", None)]), HOST, opt_level="O0")
    x = np.arange(rows, dtype=np.float32).reshape(rows, 1)
    fed = {"x": x, "like": np.zeros((wanted, 2), np.float32)}
    if 1 not in (rows, wanted) and rows != wanted:
        with pytest.raises(TvmExtError):
            compiled.run(fed)
        return
    np.testing.assert_array_equal(
        compiled.run(fed)["y"], np.broadcast_to(x, (max(rows, wanted), 2))
    )


# Sizes below zero, at which ONNX's shape inference of Slice ends the process -------------------


def sliced(first, shape, **stored):
    """``y``: what ``first`` makes of ``x``, backwards along its last axis."""
    nodes = [first, node("Slice", ["made", "start", "end", "axis", "step"], ["y"])]
    bounds = {"start": [-1], "end": [-100], "axis": [-1], "step": [-1]}
    return model_of(nodes, [tensor("x", shape)], [tensor("y", None)], **bounds, **stored)


@pytest.mark.parametrize(
    ("first", "stored"),
    [
        (node("MaxPool", ["x"], ["made"], "pool", kernel_shape=[50]), {}),
        (node("Pad", ["x", "pads"], ["made"], "pad"), {"pads": [0, 0, 0, 0, 0, -30]}),
        (node("TopK", ["x", "k"], ["made", "at"], "top"), {"k": [-3]}),
    ],
    ids=["window", "crop", "count"],
)
def test_slice_of_a_negative_size(first, stored):
    with pytest.raises(ModelError, match=r"'made' has the sizes \[1, 2, -\d+\]"):
        tvm_ext.compile(sliced(first, [1, 2, 8], **stored))


def test_slice_of_a_size_that_is_negative_for_the_given_inputs():
    model = sliced(node("MaxPool", ["x"], ["made"], "pool", kernel_shape=[5]), [1, 2, "N"])
    with pytest.raises(ModelError, match=r"'made' has the sizes \[1, 2, -1\]"):
        tvm_ext.compile(model, input_shapes={"x": [1, 2, 3]})
    x = np.arange(16, dtype=np.float32).reshape(1, 2, 8)
    found = tvm_ext.compile(model, HOST, input_shapes={"x": [1, 2, 8]}, opt_level="O0").run(
        {"x": x}
    )
    assert found["y"].tolist() == [[[7, 6, 5, 4], [15, 14, 13, 12]]]


def test_size_of_minus_one_is_one_that_the_run_knows():
    nodes = [node("Slice", ["x", "one", "far"], ["y"])]
    model = model_of(nodes, [tensor("x", [-1])], [tensor("y", [-1])], one=[1], far=[100])
    compiled = tvm_ext.compile(model, HOST, opt_level="O0")
    assert compiled.run({"x": np.float32([1, 2, 3])})["y"].tolist() == [2, 3]


# Reshape, and loops that may not begin ----------------------------------------------------------


def test_reshape_to_more_elements_than_there_are():
    nodes = [node("Reshape", ["x", "to"], ["r"]), node("Transpose", ["r"], ["y"], perm=[1, 0])]
    model = model_of(nodes, [tensor("x", ["N", 2])], [tensor("y", None)], to=[4, 1 << 20])
    compiled = tvm_ext.compile(model, HOST, opt_level="O0")
    with pytest.raises(TvmExtError):
        compiled.run({"x": np.zeros((3, 2), np.float32)})


def test_reshape_to_as_many():
    nodes = [node("Reshape", ["x", "to"], ["r"]), node("Transpose", ["r"], ["y"], perm=[1, 0])]
    model = model_of(nodes, [tensor("x", ["N", 2])], [tensor("y", None)], to=[4, 3])
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    found = tvm_ext.compile(model, HOST, opt_level="O0").run({"x": x})["y"]
    np.testing.assert_array_equal(found, x.reshape(4, 3).T)


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize("trips", [3, 500])
def test_counted_loop_whose_first_condition_the_run_knows(trips):
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["v", "v"], ["w"]),
         node("Identity", ["w"], ["s"])],
        "body",
        [tensor("n", [], TensorProto.INT64), tensor("go", [], TensorProto.BOOL), tensor("v", [2])],
        [tensor("on", [], TensorProto.BOOL), tensor("w", [2]), tensor("s", [2])],
    )  # fmt: skip
    loop = node("Loop", ["trips", "flag", "x"], ["y", "all"], "again", body=body)
    inputs = [tensor("x", [2]), tensor("flag", [], TensorProto.BOOL)]
    outputs = [tensor("y", [2]), tensor("all", ["T", 2])]
    compiled = program(model_of([loop], inputs, outputs, trips=trips), "O0")
    with np.errstate(over="ignore"):
        last = np.float32(1e-38) * np.float32(2.0**trips if trips < 100 else np.inf)
    for flag in (True, False):
        found = compiled.run({"x": np.float32([0, 1e-38]), "flag": np.array(flag)})
        assert found["all"].shape == (trips if flag else 0, 2)
        assert found["y"][1] == (last if flag else np.float32(1e-38))
