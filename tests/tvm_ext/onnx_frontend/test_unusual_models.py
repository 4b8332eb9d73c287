"""Models that are unusual but valid: names, shapes and forms that exporters really write."""

import numpy as np
import onnx
import pytest
from one_model import in_one_model, run_model
from onnx import TensorProto
from small_models import model as model_of
from small_models import node
from small_models import value as tensor
from unoptimised import HOST

import tvm_ext
from tvm_ext.onnx_frontend import import_model

X = np.array([-1, 2], np.float32)


def run(model, **inputs):
    return run_model(model, inputs)


NAMES = [
    "a b", "a/b:0", "größe", "日本", '"q"', "it's", "a[0]", "{a}", "class", "None", "1", "%d",
    "main", "R", "lv", "a\\b", "line\nbreak", " ", "x" * 500,
]  # fmt: skip


def test_any_name():
    nodes = []
    for name in NAMES:
        inner, outer = f"{name}_inner", f"{name}_out"
        nodes += [node("Relu", [name], [inner], name), node("Neg", [inner], [outer], f"{name}2")]
    outputs = [tensor(f"{name}_out", [2]) for name in NAMES]
    compiled = tvm_ext.compile(model_of(nodes, [tensor(n, [2]) for n in NAMES], outputs), HOST)
    assert [spec.name for spec in compiled.inputs] == NAMES
    feeds = {name: X + place for place, name in enumerate(NAMES)}
    found = compiled.run(feeds)
    for name in NAMES:
        assert found[f"{name}_out"].tolist() == (-np.maximum(feeds[name], 0)).tolist(), name
        with pytest.raises(tvm_ext.TvmExtError) as caught:
            compiled.run({other: X for other in NAMES if other != name})
        assert len(str(caught.value).splitlines()) == 1, name


def test_names_that_differ_by_a_dot():
    nodes = [node("Sub", ["a.b", "a_b"], ["y"])]
    model = model_of(nodes, [tensor("a.b", [2]), tensor("a_b", [2])], [tensor("y", [2])])
    assert tvm_ext.compile(model, HOST).run({"a.b": X, "a_b": 2 * X})["y"].tolist() == [1, -2]


def test_unsorted_nodes_and_unnamed_nodes():
    nodes = [node("Neg", ["a"], ["y"]), node("Relu", ["x"], ["a"])]
    model = model_of(nodes, [tensor("x", [2])], [tensor("y", [2])])
    compiled = tvm_ext.compile(model, HOST)
    assert compiled.run({"x": X})["y"].tolist() == [0, -2]
    origins = {origin for call in compiled.kernel_calls() for origin in call.origins}
    assert origins == {"Relu_0", "Neg_1"}
    assert all(not n.name for n in model.graph.node)


def test_an_input_is_an_output():
    nodes = [node("Relu", ["x"], ["y"])]
    outputs = [tensor("x", [2]), tensor("y", [2])]
    compiled = tvm_ext.compile(model_of(nodes, [tensor("x", [2])], outputs), HOST)
    result = compiled.run({"x": X})
    assert list(result) == ["x", "y"]
    assert result["x"].tolist() == X.tolist()
    assert result["y"].tolist() == [0, 2]


def test_no_nodes():
    assert run(model_of([], [tensor("x", [2])], [tensor("x", [2])]), x=X)["x"].tolist() == [-1, 2]


def test_an_initializer_is_an_output():
    model = model_of(
        [node("Relu", ["x"], ["y"])], [tensor("x", [2])], [tensor("w", [2]), tensor("y", [2])],
        w=X,
    )  # fmt: skip
    assert run(model, x=X)["w"].tolist() == [-1, 2]


def test_an_input_with_an_initializer_is_a_constant():
    inputs = [tensor("x", [2]), tensor("w", [2])]
    model = model_of([node("Add", ["x", "w"], ["y"])], inputs, [tensor("y", [2])], w=X)
    compiled = tvm_ext.compile(model, HOST)
    assert [spec.name for spec in compiled.inputs] == ["x"]
    assert compiled.run({"x": X})["y"].tolist() == [-2, 4]


def test_an_unused_input_is_still_fed():
    inputs = [tensor("unused", [3]), tensor("x", [2])]
    model = model_of([node("Relu", ["x"], ["y"])], inputs, [tensor("y", [2])])
    assert run(model, x=X, unused=np.ones(3, np.float32))["y"].tolist() == [0, 2]


def test_an_output_twice_counts_once():
    model = model_of([node("Relu", ["x"], ["y"])], [tensor("x", [2])], [tensor("y", [2])] * 2)
    assert list(run(model, x=X)) == ["y"]


def test_no_graph_name_and_no_output_shape():
    model = model_of([node("Relu", ["x"], ["y"])], [tensor("x", [2])], [tensor("y", None)])
    model.graph.name = ""
    compiled = tvm_ext.compile(model, HOST)
    assert compiled.outputs[0].shape == (2,)


def test_scalars():
    inputs = [tensor("x", []), tensor("z", [])]
    model = model_of([node("Mul", ["x", "z"], ["y"])], inputs, [tensor("y", [])])
    result = run(model, x=np.float32(3), z=np.float32(2))["y"]
    assert (result.shape, float(result)) == ((), 6.0)


@pytest.mark.extended
@pytest.mark.parametrize("sizes", [("a/b", "N*2"), ("1", "2"), (None, None), ("?", "?"), (0, -1)])
def test_dimensions_without_a_plain_name_are_dynamic(sizes):
    model = model_of([node("Relu", ["x"], ["y"])], [tensor("x", sizes)], [tensor("y", None)])
    compiled = tvm_ext.compile(model, HOST)
    assert len(set(compiled.inputs[0].shape)) == 2
    for shape in ((2, 3), (5, 1), (0, 4)):
        assert compiled.run({"x": -np.ones(shape, np.float32)})["y"].shape == shape


def test_a_reduction_over_nothing_is_zero():
    model = model_of(
        [node("ReduceSum", ["x", "a"], ["y"], keepdims=0)],
        [tensor("x", ["N", 70])],
        [tensor("y", [70])],
        a=np.array([0]),
    )
    compiled = tvm_ext.compile(model, HOST)
    assert compiled.run({"x": np.full((3, 70), 5, np.float32)})["y"].tolist() == [15] * 70
    assert compiled.run({"x": np.ones((0, 70), np.float32)})["y"].tolist() == [0] * 70


def test_equal_nodes_whose_results_are_both_outputs():
    """ONNX-level simplification once lost a stored shape here."""
    nodes = [node("Flatten", ["x"], ["a"], axis=-1), node("Flatten", ["x"], ["b"], axis=0)]
    model = model_of(nodes, [tensor("x", [2])], [tensor("a", [1, 2]), tensor("b", [1, 2])])
    result = run(model, x=X)
    assert result["a"].tolist() == result["b"].tolist() == [[-1, 2]]


# Forms that TVM's converters misread -------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "pads", "expected"),
    [("SAME_UPPER", [1, 1], [1, 3, 4]), ("SAME_LOWER", [1, 1], [1, 3, 4])],
)
def test_automatic_padding_becomes_explicit(mode, pads, expected):
    attributes = {"auto_pad": mode, "kernel_shape": [3], "strides": [2], "ceil_mode": 1}
    model = model_of(
        [node("MaxPool", ["x"], ["y"], **attributes)],
        [tensor("x", [1, 1, 5])],
        [tensor("y", [1, 1, 3])],
    )
    text = import_model(model).mod.script()
    assert f"padding={pads}, ceil_mode=False" in text
    x = np.arange(5, dtype=np.float32).reshape(1, 1, 5)
    assert run(model, x=x)["y"].ravel().tolist() == expected


@pytest.mark.parametrize(("mode", "pads"), [("SAME_UPPER", [0, 1]), ("SAME_LOWER", [1, 0])])
def test_the_odd_element_of_the_padding(mode, pads):
    model = model_of(
        [node("Conv", ["x", "w"], ["y"], auto_pad=mode)],
        [tensor("x", [1, 1, 4])],
        [tensor("y", [1, 1, 4])],
        w=np.ones((1, 1, 2), np.float32),
    )
    assert f"padding={pads}" in import_model(model).mod.script()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_power_with_an_integer_exponent(dtype):
    model = model_of(
        [node("Pow", ["x", "e"], ["y"])], [tensor("x", [2])], [tensor("y", [2])],
        e=np.array(2, dtype),
    )  # fmt: skip
    assert run(model, x=np.array([1.5, 2], np.float32))["y"].tolist() == [2.25, 4]


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("op", ["Elu", "Selu", "HardSigmoid", "ThresholdedRelu", "Celu", "Shrink"])
def test_activations_in_float16(op):
    half = TensorProto.FLOAT16
    nodes = [node("Neg", ["x"], ["n"]), node(op, ["n"], ["y"], "act"), node("Abs", ["y"], ["z"])]
    outputs = [tensor("y", [2], half), tensor("z", [2], half)]
    if op == "Celu":
        nodes = [node("Neg", ["x"], ["n"]), node("Elu", ["n"], ["y"]), node("Abs", ["y"], ["z"])]
    result = run(model_of(nodes, [tensor("x", [2], half)], outputs), x=X.astype(np.float16))
    wide = model_of(nodes, [tensor("x", [2])], [tensor("y", [2]), tensor("z", [2])])
    for name, values in run(wide, x=X).items():
        assert result[name].dtype == np.float16
        np.testing.assert_allclose(result[name], values, rtol=2e-3)


def test_operand_aligned_by_axis_as_before_opset_7():
    x = np.zeros((3, 3), np.float32)
    model = model_of(
        [node("Add", ["x", "w"], ["y"], broadcast=1, axis=0)],
        [tensor("x", [3, 3])],
        [tensor("y", [3, 3])],
        w=np.arange(3, dtype=np.float32),
        opset=6,
    )
    assert run(model, x=x)["y"][:, 0].tolist() == [0, 1, 2]


def test_arguments_as_attributes_in_old_opsets():
    model = model_of(
        [
            node("Slice", ["x"], ["a"], starts=[1], ends=[4], axes=[2]),
            node("Upsample", ["a", "s"], ["b"], mode="nearest"),
            node("Pad", ["b"], ["c"], pads=[0, 0, 0, 0, 0, 1]),
            node("Clip", ["c"], ["y"], min=0.5, max=2.5),
        ],
        [tensor("x", [1, 1, 5])],
        [tensor("y", None)],
        s=np.array([1, 1, 2], np.float32),
        opset=9,
    )
    x = np.arange(5, dtype=np.float32).reshape(1, 1, 5)
    assert run(model, x=x)["y"].ravel().tolist() == [1, 1, 2, 2, 2.5, 2.5, 0.5]


def test_file_and_proto_are_left_as_they_are(tmp_path):
    model = model_of([node("Relu", ["x"], ["y"])], [tensor("x", [None])], [tensor("y", None)])
    before = model.SerializeToString()
    onnx.save_model(model, tmp_path / "m.onnx")
    tvm_ext.compile(model, HOST)
    tvm_ext.compile(tmp_path / "m.onnx", HOST)
    assert model.SerializeToString() == before == (tmp_path / "m.onnx").read_bytes()
