"""Models of less usual forms in training: what is done with them, or said about them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from training_models import Graph, batch_for, compile_training, gru_of_reset_state, lstm, mlp
from tvm import relax

from tvm_ext.errors import InputError, UnsupportedOperatorError
from tvm_ext.onnx_frontend.trainable import import_trainable
from tvm_ext.training import SGD, CrossEntropy


def _losses(model, loss="cross_entropy", steps=3, **options):
    trainer = compile_training(model, loss, SGD(lr=0.1), opt_level="O1", **options)
    return [trainer.step(batch_for(model)) for _ in range(steps)]


def test_a_recurrent_layer_that_nothing_trained_reaches_keeps_its_kernel():
    frozen = import_trainable(lstm(), ["head.*"], None)
    assert frozen.imported.prepared_operators["LSTM"] == 1
    assert not frozen.is_recurrent
    trained = import_trainable(lstm(), ["lstm.R"], None)
    assert "LSTM" not in trained.imported.prepared_operators
    assert trained.is_recurrent


@pytest.mark.slow
def test_a_frozen_recurrent_layer_behind_a_trained_one_is_written_out():
    g = Graph("stacked")
    x = g("Transpose", g.linear("fc1", "x", 5, 6), perm=[1, 0, 2])
    weights = [g.weight("W", 1, 28, 6), g.weight("R", 1, 28, 7)]
    _, last = g("LSTM", x, *weights, outputs=2, hidden_size=7)
    flat = g("Reshape", last, g.constant("flat", [4, 7]))
    model = g.model([4, 3, 5], [4, 10], g.linear("head", flat, 7, 10))
    assert "LSTM" not in import_trainable(model, ["fc1.*"], None).imported.prepared_operators
    first, *_, last = _losses(model, train=["fc1.*"])
    assert last < first


def test_a_number_that_a_layer_learns_is_trained_behind_a_view_too():
    g = Graph("slopes")
    slope = g("Unsqueeze", g.weight("slope", 1), g.constant("axes", [0]))
    scaled = g("Mul", g("PRelu", g.linear("fc", "x", 8, 10), slope), g.weight("scale"))
    model = g.model([4, 8], [4, 10], scaled)
    names = {"fc.weight", "fc.bias", "slope"}
    assert import_trainable(model, None, None).weights.keys() == names
    # Another single number may be one of a formula, unless it is named.
    assert import_trainable(model, ["*", "scale"], None).weights.keys() == {*names, "scale"}
    trainer = compile_training(model, "cross_entropy", SGD(lr=0.1), opt_level="O1", train=["s*"])
    before = trainer.weights
    trainer.step(batch_for(model))
    assert trainer.trained == ("slope",)
    assert trainer.weights["slope"] != before["slope"]


def test_a_gru_that_resets_its_state_splits_its_weights_once():
    operators = import_trainable(gru_of_reset_state(), None, None).imported.prepared_operators
    # Steps, gates, biases and weights once; the gates of each of six steps twice.
    assert operators["Split"] == 3 + 2 * 6


@pytest.mark.slow
@pytest.mark.parametrize("opset", [7, 10, 11])
def test_dropout_with_its_share_as_an_attribute_draws(opset):
    g = Graph("dropped")
    x = g("Dropout", g.linear("fc1", "x", 8, 64), ratio=0.25)
    model = g.model([4, 8], [4, 10], g.linear("head", x, 64, 10))
    model.opset_import[0].version, model.ir_version = opset, 4
    trainer = compile_training(model, "cross_entropy", SGD(lr=0.0), opt_level="O1")
    assert len({trainer.step(batch_for(model)) for _ in range(3)}) == 3
    names = {tensor.name for tensor in model.graph.initializer}
    assert set(trainer.trained) <= names


def _choosing():
    g = Graph("choosing")
    x = g.linear("fc1", "x", 8, 8)
    c = g("Greater", g("ReduceSum", "x", keepdims=0), g.constant("zero", 0.0, "float32"))
    sides = []
    for name in ("Relu", "Tanh"):
        typed = helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8])
        node = helper.make_node(name, [x], [name], name=name.lower())
        sides.append(helper.make_graph([node], name, [], [typed]))
    x = g("If", c, then_branch=sides[0], else_branch=sides[1])
    return g.model([4, 8], [4, 10], g.linear("head", x, 8, 10))


@pytest.mark.extended
@pytest.mark.parametrize("train", [["head.*"], ["fc1.*"]])
def test_an_if_may_lie_ahead_of_weights_and_behind_them(train):
    first, *_, last = _losses(_choosing(), train=train)
    assert last < first


def _positive(scaled_by: str):
    """The mean of the elements above zero of ``x``, or of a layer of it."""
    g = Graph("positive")
    layer = g.linear("fc1", "x", 8, 8)
    places = g("Transpose", g("NonZero", g("Greater", "x", g.constant("zero", 0.0, "float32"))),
               perm=[1, 0])  # fmt: skip
    taken = g("GatherND", {"x": "x", "layer": layer}[scaled_by], places)
    mean = g("ReduceMean", taken, keepdims=0)
    return g.model([4, 8], [4, 10], g.linear("head", g("Mul", layer, mean), 8, 10))


@pytest.mark.extended
def test_sizes_of_a_run_may_lie_ahead_of_weights_and_are_refused_behind_them():
    first, *_, last = _losses(_positive("x"))
    assert last < first
    with pytest.raises(UnsupportedOperatorError, match=r"a size that a run decides \(nodes: "):
        compile_training(_positive("layer"), "cross_entropy", SGD(lr=0.1))


@pytest.mark.extended
def test_a_softmax_along_another_axis_than_the_classes_stays():
    g = Graph("softmax")
    x = g.linear("fc1", "x", 3, 5)
    model = g.model([2, 4, 3], [2, 4, 5], g("Softmax", x, axis=1))
    rng = np.random.default_rng(0)
    batch = {"x": rng.standard_normal((2, 4, 3)).astype("float32"),
             "target": rng.integers(0, 5, (2, 4))}  # fmt: skip
    trainer = compile_training(model, CrossEntropy(axis=-1), SGD(lr=0.1), opt_level="O1")
    layer = batch["x"] @ trainer.weights["fc1.weight"] + trainer.weights["fc1.bias"]
    shares = np.exp(layer) / np.exp(layer).sum(1, keepdims=True)
    logs = shares - np.log(np.exp(shares).sum(-1, keepdims=True))
    expected = -np.mean(np.take_along_axis(logs, batch["target"][..., None], -1))
    assert trainer.step(batch) == pytest.approx(expected, abs=1e-5)


@pytest.mark.extended
def test_a_batch_normalization_may_compute_one_of_its_statistics():
    g = Graph("normalized")
    mean = g("ReduceMean", g.weight("means", 2, 4), g.constant("axis", [0]), keepdims=0)
    parts = [g.weight("bn.weight", 4, around=1.0), g.weight("bn.bias", 4), mean]
    parts.append(g.constant("running_var", np.ones(4), "float32"))
    x = g("BatchNormalization", g.conv("conv", "x", 2, 4), *parts)
    pooled = g("Flatten", g("GlobalAveragePool", x))
    model = g.model([8, 2, 4, 4], [8, 10], g.linear("head", pooled, 4, 10))
    trainer = compile_training(model, "cross_entropy", SGD(lr=0.1), train=["bn.*"], opt_level="O1")
    trainer.step(batch_for(model))
    assert set(trainer.weights) == {"bn.weight", "bn.bias", "running_var"}
    assert np.abs(trainer.weights["running_var"] - 1).max() > 1e-3


def _cast(kind):
    """A layer in another type between two of float32, and weights of float64 where it is that."""
    g = Graph("mixed")
    x = g("Cast", g("Relu", g.linear("fc1", "x", 8, 16)), to=kind)
    if kind == TensorProto.DOUBLE:
        array = np.random.default_rng(0).standard_normal((16, 16)) / 4
        g.initializers.append(numpy_helper.from_array(array, "mid.weight"))
        weight = "mid.weight"
    else:
        weight = g("Cast", g.weight("mid.weight", 16, 16), to=kind)
    x = g("Cast", g("Tanh", g("MatMul", x, weight)), to=TensorProto.FLOAT)
    return g.model([4, 8], [4, 10], g.linear("head", x, 16, 10))


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["FLOAT16", "DOUBLE"])
def test_layers_of_other_types_are_trained(kind):
    first, *_, last = _losses(_cast(getattr(TensorProto, kind)), clip_norm=1.0)
    assert last < first


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_outputs_of_float16_are_summed_in_float32(loss):
    g = Graph("half")
    x = g("Cast", g.linear("fc1", "x", 8, 10), to=TensorProto.FLOAT16)
    model = g.model([4, 8], [4, 10], x)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    batch = batch_for(model)
    if loss == "mse":
        batch["target"] = np.zeros((4, 10), "float16")
    trainer = compile_training(model, loss, SGD(lr=0.1), opt_level="O1")
    first = trainer.step(batch)
    assert trainer.step(batch) < first


def _function(params, result):
    bb = relax.BlockBuilder()
    params = [relax.Var(name, ty) for name, ty in params]
    with bb.function("loss", params):
        with bb.dataflow():
            made = bb.emit_output(result(*params))
        bb.emit_func_output(made)
    return bb.get()["loss"]


_OUTPUT = relax.TensorType([16, 10], "float32")


@pytest.mark.parametrize(
    ("params", "result", "message"),
    [
        ([], lambda: relax.const(1.0), "parameters none; expected first one for each output"),
        ([("y", relax.TensorType([10, 16], "float32"))], relax.op.sum, "of the parameters y: "),
        ([("y", relax.TensorType([16, 10], "float64"))], relax.op.sum, "of the parameters y: "),
        ([("y", _OUTPUT)], lambda y: relax.op.sum(y, [1]), r"returns float32\[16\]; expected one"),
        ([("y", _OUTPUT)], lambda y: relax.op.max(relax.op.argmax(y)), "returns int64"),
        ([("y", _OUTPUT), ("t", relax.TensorType(dtype="float32", ndim=2))],
         lambda y, t: relax.op.sum(y), "'t' of a tensor of unknown sizes; expected"),
        ([("y", _OUTPUT), ("x", _OUTPUT)], lambda y, x: relax.op.sum(relax.op.subtract(y, x)),
         "target 'x', which is also an input of mlp"),
    ],
)  # fmt: skip
def test_a_function_that_is_no_loss_of_the_model_is_refused(params, result, message):
    with pytest.raises(InputError, match=message) as failed:
        compile_training(mlp(), _function(params, result), SGD(lr=0.1))
    assert "\n" not in str(failed.value)


@pytest.mark.extended
def test_files_that_are_no_checkpoints_are_refused_in_one_line(tmp_path):
    trainer = compile_training(mlp(), "mse", SGD(lr=np.float32(0.1)), opt_level="O1")
    np.save(tmp_path / "array.npy", np.zeros(3))
    onnx.save(mlp(), tmp_path / "model.onnx")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    trainer.save(tmp_path / "whole.npz")
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 255
    (tmp_path / "changed.npz").write_bytes(changed)
    (tmp_path / "empty.npz").write_bytes(b"")
    names = ("array.npy", "model.onnx", "other.npz", "cut.npz", "changed.npz", "empty.npz", "none")
    for name in (*names, "."):
        with pytest.raises(InputError, match="checkpoint") as failed:
            trainer.resume(tmp_path / name)
        assert "\n" not in str(failed.value)
    trainer.resume(tmp_path / "whole.npz")


@pytest.mark.parametrize("rate", [np.float32(0.1), np.float64(0.1), 1, np.int64(1)])
def test_a_schedule_may_give_numbers_of_numpy(rate):
    assert SGD(lr=lambda step: rate).numbers(3) == {"learning_rate": float(rate)}
