"""Checking whole models, and the reference that they are checked against."""

import json
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from thoroughness import one_in

import tvm_ext
from tvm_ext.check.check import check_compiled, check_model
from tvm_ext.check.reference import (
    ReferenceSession,
    quantises,
    reference_spreads,
    run_reference,
)
from tvm_ext.check.unsigned_bytes import with_unsigned_bytes
from tvm_ext.errors import InputError, ReferenceUnavailableError
from tvm_ext.onnx_frontend.submodel import exposable_values, value_precision, with_types


def model(batch="N", weight=2.0, opset=17) -> onnx.ModelProto:
    """y = relu(x @ w), z = float64(tanh(float32(n))), k = argmax(y)."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"], name="project"),
            helper.make_node("Relu", ["m"], ["y"], name="relu"),
            helper.make_node("Cast", ["n"], ["f"], name="narrow", to=TensorProto.FLOAT),
            helper.make_node("Tanh", ["f"], ["t"], name="tanh"),
            helper.make_node("Cast", ["t"], ["z"], name="widen", to=TensorProto.DOUBLE),
            helper.make_node("ArgMax", ["y"], ["k"], name="argmax", axis=1),
        ],
        "small",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4]),
            helper.make_tensor_value_info("n", TensorProto.DOUBLE, [5]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 3]),
            helper.make_tensor_value_info("z", TensorProto.DOUBLE, [5]),
            helper.make_tensor_value_info("k", TensorProto.INT64, [batch, 1]),
        ],
        [numpy_helper.from_array(np.eye(4, 3, dtype=np.float32) * np.float32(weight), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def inputs(batch=2) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {"x": draw.standard_normal((batch, 4), np.float32), "n": draw.standard_normal(5)}


def test_a_model_agrees_with_random_inputs_and_says_so():
    result = check_model(model(), input_shapes={"x": [3, 4]}, opt_level="O2", seed=4)
    assert result.ok
    assert [output.name for output in result.outputs] == ["y", "z", "k"]
    assert [output.tolerance for output in result.outputs] == [1e-3, 1e-3, 0.0]
    assert (result.model, result.opt_level) == ("small", "O2")
    assert "agrees with ONNX Runtime" in result.to_text()
    assert "identical" in result.to_text()
    saved = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert saved["ok"] is True
    assert saved["bisection"] is None


@pytest.mark.extended
def test_a_dynamic_model_is_checked_at_the_size_of_the_inputs():
    assert check_model(model(), inputs=inputs(5), opt_level=0).ok


@pytest.mark.extended
def test_a_compiled_model_of_another_version_differs():
    compiled = tvm_ext.compile(model(batch=2), opt_level=1)
    assert check_compiled(compiled, model(batch=2), inputs()).ok
    result = check_compiled(compiled, model(batch=2, weight=2.1), inputs())
    assert [output.ok for output in result.outputs] == [False, True, True]
    assert result.outputs[0].max_rel == pytest.approx(0.1 / 2.1, rel=1e-3)
    assert not result.ok
    assert "differs from ONNX Runtime" in result.to_text()
    assert check_compiled(compiled, model(batch=2, weight=2.1), inputs(), rtol=0.1).ok


@pytest.mark.extended
def test_wrong_inputs_are_refused_before_the_reference_runs():
    with pytest.raises(InputError, match="input 'n' is missing"):
        check_model(model(), inputs={"x": inputs()["x"]}, opt_level=0)


@pytest.mark.extended
def test_text_shows_no_control_characters_of_a_model():
    evil = model(batch=1)
    evil.graph.name = "bad\x1b[31m"
    assert "\x1b" not in check_model(evil, opt_level=0).to_text()


def test_the_reference_runs_files_and_models_with_and_without_its_optimisations(tmp_path):
    path = tmp_path / "small.onnx"
    onnx.save(model(), path)
    expected = np.maximum(inputs()["x"][:, :3] * 2, 0)
    for source, options in (
        (model(), {}),
        (path, {"threads": 1}),
        (str(path), {"optimise": False}),
    ):
        outputs = run_reference(source, inputs(), **options)
        assert list(outputs) == ["y", "z", "k"]
        np.testing.assert_allclose(outputs["y"], expected, rtol=1e-6)
    session = ReferenceSession(path, threads=1)
    assert (session.input_names, session.output_names) == (("x", "n"), ("y", "z", "k"))
    first, second = session.run(inputs(1)), session.run(inputs(3))
    assert (first["y"].shape, second["y"].shape) == ((1, 3), (3, 3))


def test_a_reference_that_cannot_be_had_says_why_in_one_line(monkeypatch, tmp_path):
    unknown = model(opset=99)
    with pytest.raises(ReferenceUnavailableError, match="refuses the model") as caught:
        run_reference(unknown, inputs())
    assert "\n" not in str(caught.value)
    with pytest.raises(ReferenceUnavailableError, match="refuses the model"):
        ReferenceSession(tmp_path / "absent.onnx")
    with pytest.raises(ReferenceUnavailableError, match="failed to run"):
        run_reference(model(), {"x": inputs()["x"]})
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ReferenceUnavailableError, match="pip install onnxruntime"):
        run_reference(model(), inputs())


def test_precision_is_that_of_the_narrowest_value_on_the_way():
    precision = value_precision(with_types(model()).graph)
    assert precision["n"] == "float64"
    assert precision["z"] == "float32"
    assert precision["k"] == "float32"
    assert precision["w"] == "float32"


def test_intermediates_with_a_known_type_can_be_outputs():
    assert exposable_values(with_types(model()).graph) == ["m", "f", "t"]
    assert exposable_values(model().graph) == []


def steps_of(factor: float) -> onnx.ModelProto:
    """y = round(x * factor)."""
    stored = {"factor": np.float32(factor), "one": np.float32(1), "zero": np.int8(0)}
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "factor"], ["m"], name="scale"),
            helper.make_node("QuantizeLinear", ["m", "one", "zero"], ["q"], name="quantise"),
            helper.make_node("DequantizeLinear", ["q", "one", "zero"], ["y"], name="back"),
        ],
        "steps",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.extended
def test_a_number_between_two_steps_may_go_to_either():
    compiled = tvm_ext.compile(steps_of(1 + 1e-6))
    between = {"x": np.array([20.0, 3.5 - 3e-7], np.float32)}
    assert compiled.run(between)["y"].tolist() == [20, 4]
    result = check_compiled(compiled, steps_of(1), between)
    assert result.ok
    assert result.reference_spread == pytest.approx(1 / 20)
    assert result.outputs[0].tolerance == pytest.approx(2 / 20)
    assert "The model quantises in the run" in result.to_text()
    # A tolerance of the user's stays what it is, and elsewhere a step is a step too much.
    assert not check_compiled(compiled, steps_of(1), between, rtol=1e-3).ok
    apart = {"x": np.array([20.0, 3.4], np.float32)}
    result = check_compiled(compiled, steps_of(1.1), apart)
    assert not result.ok
    assert result.reference_spread < 1e-5


def test_which_models_quantise_in_the_run():
    gelu = helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft")
    steps = helper.make_node("QuantizeLinear", ["x", "s"], ["y"])
    called = helper.make_node("Steps", ["x", "s"], ["y"], domain="local")
    function = helper.make_function("local", "Steps", ["x", "s"], ["y"], [steps], [])
    for nodes, functions, expected in (
        ([gelu], [], False),
        ([steps], [], True),
        ([called], [function], True),
    ):
        graph = helper.make_graph(nodes, "graph", [], [])
        assert quantises(helper.make_model(graph, functions=functions)) == expected


def bytes_in_products(operator: str, optional: bool) -> tuple[onnx.ModelProto, np.ndarray]:
    """Two products by the same zero point, whose sums of pairs do not fit 16 bits; and y."""
    draw = np.random.default_rng(0)
    stored = {
        "w": draw.choice(np.array([-127, 127], np.int8), (16, 16)),
        "v": draw.choice(np.array([-127, 127], np.int8), (16, 16)),
        **{"a": np.uint8(0), "b": np.int8(0), "s": np.float32(0.02), "t": np.float32(0.4)},
    }
    if operator == "QLinearMatMul":
        nodes = [
            helper.make_node(operator, ["x", "s", "a", "w", "s", "b", "t", "a"], ["m"]),
            helper.make_node(operator, ["m", "t", "a", "v", "s", "b", "t", "a"], ["y"]),
        ]
    else:
        zero_points = [] if optional else ["a", "b"]
        nodes = [
            helper.make_node("MatMulInteger", ["x", name, *zero_points], [f"{name}y"])
            for name in ("w", "v")
        ]
        nodes.append(helper.make_node("Add", ["wy", "vy"], ["y"]))
    dtype = TensorProto.UINT8 if operator == "QLinearMatMul" else TensorProto.INT32
    graph = helper.make_graph(
        nodes,
        "bytes",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", 16])],
        [helper.make_tensor_value_info("y", dtype, ["n", 16])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), stored


@pytest.mark.extended
@pytest.mark.parametrize("optimise", one_in(2, [True, False]))
@pytest.mark.parametrize(
    ("operator", "optional"),
    [("MatMulInteger", False), ("MatMulInteger", True), ("QLinearMatMul", False)],
)
def test_the_reference_adds_products_of_bytes_without_saturating(operator, optional, optimise):
    proto, stored = bytes_in_products(operator, optional)
    x = np.random.default_rng(1).integers(200, 256, (5, 16)).astype(np.uint8)
    w, v = (stored[name].astype(np.int64) for name in ("w", "v"))
    wanted = x @ w + x @ v
    if operator == "QLinearMatMul":
        scale = np.float32(0.02 * 0.02 / 0.4)
        first = np.clip(np.rint((x @ w) * scale), 0, 255)
        wanted = np.clip(np.rint((first @ v) * np.float32(0.02)), 0, 255)
    found = run_reference(proto, {"x": x}, optimise=optimise)["y"]
    assert np.abs(found - wanted).max() <= (operator == "QLinearMatMul")
    assert check_model(proto, inputs={"x": x}, opt_level="O1").ok


def test_no_byte_is_moved_where_nothing_saturates():
    for source in (model(), steps_of(2)):
        assert with_unsigned_bytes(source) is None


def test_scales_are_moved_as_inputs_are_where_a_model_quantises():
    """After the first rounding no input moves a number from a step to another."""
    proto = steps_of(1)
    shifted = helper.make_node("Add", ["y", "half"], ["h"], name="shift")
    again = helper.make_node("QuantizeLinear", ["h", "one", "zero"], ["r"], name="again")
    back = helper.make_node("DequantizeLinear", ["r", "one", "zero"], ["z"], name="out")
    proto.graph.node.extend([shifted, again, back])
    proto.graph.initializer.append(
        numpy_helper.from_array(np.array([0.5, 1.5], np.float32), "half")
    )
    proto.graph.output[0].name = "z"
    fed = {"x": np.array([3.0, 2.0], np.float32)}
    reference = run_reference(proto, fed)
    assert reference["z"].tolist() == [4, 4]
    assert reference_spreads(proto, fed, reference)["z"] == pytest.approx(1 / 4, rel=1e-4)
