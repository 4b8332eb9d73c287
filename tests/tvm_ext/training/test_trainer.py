"""What a trainer keeps, writes and refuses."""

import os
import pickle
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from training_models import Graph, batch_for, compile_training, mlp, resnet_block
from tvm import relax

import tvm_ext
from tvm_ext.errors import (
    BuildError,
    InputError,
    MemoryLimitError,
    ModelError,
    UnsupportedOperatorError,
)
from tvm_ext.passes.donate_params import DONATED
from tvm_ext.training import SGD, Adam, AdamW, CrossEntropy


@pytest.fixture(scope="module")
def trained():
    """A trainer of the MLP, for tests that go on from wherever it is."""
    return compile_training(mlp(), "cross_entropy", Adam(lr=1e-2))


def logits_of(model, weights, x):
    """The MLP in NumPy."""
    stored = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    values = {**stored, **weights}
    hidden = np.maximum(x @ values["fc1.weight"] + values["fc1.bias"], 0)
    return hidden @ values["head.weight"] + values["head.bias"]


def loss_of(logits, labels):
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return -np.mean(logs[np.arange(len(labels)), labels])


@pytest.mark.extended
def test_a_step_returns_the_loss_ahead_of_it(trained):
    batch = batch_for(mlp())
    before = loss_of(logits_of(mlp(), trained.weights, batch["x"]), batch["target"])
    assert trained.step(batch) == pytest.approx(before, abs=1e-5)
    after = loss_of(logits_of(mlp(), trained.weights, batch["x"]), batch["target"])
    assert after < before


def test_resume_goes_on_bit_for_bit(trained, tmp_path):
    batches = [batch_for(mlp(), seed) for seed in range(3)]
    trained.fit(batches, progress=False)
    trained.save(tmp_path / "checkpoint.npz")
    steps, losses = trained.steps, trained.fit(batches, progress=False)
    weights = trained.weights
    trained.resume(tmp_path / "checkpoint.npz")
    assert trained.steps == steps
    assert trained.fit(batches, progress=False) == losses
    assert all(np.array_equal(trained.weights[name], one) for name, one in weights.items())


def test_the_onnx_file_gets_the_weights_and_nothing_else(trained, tmp_path):
    trained.save_onnx(tmp_path / "trained.onnx")
    written, given = onnx.load(tmp_path / "trained.onnx"), mlp()
    stored = {one.name: numpy_helper.to_array(one) for one in written.graph.initializer}
    assert all(np.array_equal(stored[name], one) for name, one in trained.weights.items())
    for model in (written, given):
        del model.graph.initializer[:]
    assert written == given
    x = batch_for(given)["x"]
    logits = tvm_ext.compile(tmp_path / "trained.onnx").run({"x": x})["y"]
    np.testing.assert_allclose(logits, logits_of(mlp(), trained.weights, x), rtol=0, atol=1e-4)


def test_a_batch_that_does_not_fit_changes_nothing(trained):
    batch, before, steps = batch_for(mlp()), trained.weights, trained.steps
    with pytest.raises(InputError, match="input 'target' is missing"):
        trained.step({"x": batch["x"]})
    with pytest.raises(InputError, match="input 'x' is"):
        trained.step({**batch, "x": batch["x"][:5]})
    assert trained.steps == steps
    assert all(np.array_equal(trained.weights[name], one) for name, one in before.items())


@pytest.mark.extended
def test_a_file_that_is_no_checkpoint_of_this_is_refused(trained, tmp_path):
    (tmp_path / "text.npz").write_text("nothing")
    with pytest.raises(InputError, match="cannot be read as a checkpoint"):
        trained.resume(tmp_path / "text.npz")
    other = compile_training(mlp(), "cross_entropy", SGD(lr=0.1), train=["head.*"])
    other.save(tmp_path / "other.npz")
    with pytest.raises(InputError, match="checkpoint of something else"):
        trained.resume(tmp_path / "other.npz")


@pytest.mark.extended
def test_patterns_choose_the_weights():
    trainer = compile_training(mlp(), "cross_entropy", SGD(lr=0.1), train=["head.*"])
    assert trainer.trained == ("head.weight", "head.bias")
    trainer.step(batch_for(mlp()))
    with pytest.raises(InputError, match=r"'heed\.\*', which no weight of mlp matches"):
        compile_training(mlp(), "cross_entropy", SGD(lr=0.1), train=["heed.*"])


def _gradients(batch, weights=None):
    """Of the MLP's head by NumPy: what a softmax names too much, times what it was read from."""
    model = mlp()
    stored = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    values = {**stored, **(weights or {})}
    hidden = np.maximum(batch["x"] @ values["fc1.weight"] + values["fc1.bias"], 0)
    shares = np.exp(logits_of(model, values, batch["x"]))
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(len(shares)), batch["target"]] -= 1
    shares /= len(shares)
    return {"head.weight": hidden.T @ shares, "head.bias": shares.sum(0)}


def _trained_head(optimizer, steps=2, **options):
    """The head's weights behind some steps, and the gradients that NumPy had for each."""
    trainer = compile_training(mlp(), "cross_entropy", optimizer, train=["head.*"], **options)
    gradients, batch = [], batch_for(mlp())
    for _ in range(steps):
        gradients.append(_gradients(batch, trainer.weights))
        trainer.step(batch)
    return trainer.weights, gradients


def _start():
    stored = {one.name: numpy_helper.to_array(one) for one in mlp().graph.initializer}
    return {name: stored[name] for name in ("head.weight", "head.bias")}


@pytest.mark.extended
def test_momentum_decay_and_a_schedule():
    rates = (0.1, 0.05)
    optimizer = SGD(lr=lambda step: rates[step], momentum=0.9, weight_decay=0.1)
    found, gradients = _trained_head(optimizer)
    for name, weight in _start().items():
        moved = np.zeros_like(weight)
        for rate, by in zip(rates, gradients, strict=True):
            moved = 0.9 * moved + by[name] + 0.1 * weight
            weight = weight - rate * moved
        np.testing.assert_allclose(found[name], weight, rtol=0, atol=1e-6)


def test_adam_with_decay_apart():
    found, gradients = _trained_head(AdamW(lr=0.01, weight_decay=0.1))
    for name, weight in _start().items():
        mean, square = np.zeros_like(weight), np.zeros_like(weight)
        for count, by in enumerate(gradients, 1):
            mean = 0.9 * mean + 0.1 * by[name]
            square = 0.999 * square + 0.001 * by[name] ** 2
            root = np.sqrt(square / (1 - 0.999**count)) + 1e-8
            weight = weight * (1 - 0.01 * 0.1) - 0.01 * mean / (1 - 0.9**count) / root
        np.testing.assert_allclose(found[name], weight, rtol=0, atol=1e-5)


@pytest.mark.extended
def test_gradients_are_scaled_down_to_a_norm():
    found, (gradient,) = _trained_head(SGD(lr=1.0), steps=1, clip_norm=0.05)
    norm = np.sqrt(sum(np.sum(one**2) for one in gradient.values()))
    assert norm > 0.05
    for name, weight in _start().items():
        expected = weight - gradient[name] * 0.05 / norm
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-6)


@pytest.mark.extended
def test_gradients_of_batches_add_up():
    parts = [batch_for(mlp(), seed) for seed in range(3)]
    batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    trainer = compile_training(mlp(), "cross_entropy", SGD(lr=0.5), accumulate=3)
    whole = compile_training(mlp(48), "cross_entropy", SGD(lr=0.5))
    for _ in range(2):
        assert trainer.step(batch) == pytest.approx(whole.step(batch), abs=1e-5)
    for name, weight in whole.weights.items():
        np.testing.assert_allclose(trainer.weights[name], weight, rtol=0, atol=1e-5)


@pytest.mark.extended
def test_mean_squares_and_a_function():
    bb = relax.BlockBuilder()
    y, wanted = (relax.Var(n, relax.TensorType([16, 10], "float32")) for n in ("y", "wanted"))
    with bb.function("loss", [y, wanted]):
        with bb.dataflow():
            distance = bb.emit(relax.op.abs(bb.emit(relax.op.subtract(y, wanted))))
            result = bb.emit_output(relax.op.mean(distance))
        bb.emit_func_output(result)
    model, x = mlp(), batch_for(mlp())["x"]
    target = np.ones((16, 10), "float32")
    error = logits_of(model, {}, x) - target
    squares = compile_training(model, "mse", SGD(lr=0.1))
    assert squares.step({"x": x, "target": target}) == pytest.approx(np.mean(error**2), rel=1e-5)
    own = compile_training(model, bb.get()["loss"], SGD(lr=0.1))
    first = own.step({"x": x, "wanted": target})
    assert first == pytest.approx(np.mean(np.abs(error)), rel=1e-5)
    assert own.step({"x": x, "wanted": target}) < first


def _dropped(batch=4, width=64):
    g = Graph("dropped")
    x = g("Dropout", g.linear("fc1", "x", 8, width))
    return g.model([batch, 8], [batch, 10], g.linear("head", x, width, 10))


@pytest.mark.extended
def test_dropout_draws_anew_in_each_step_and_the_same_again(tmp_path):
    trainer = compile_training(_dropped(), "cross_entropy", SGD(lr=0.0))
    batch = batch_for(_dropped())
    trainer.save(tmp_path / "start.npz")
    losses = [trainer.step(batch) for _ in range(4)]
    assert len(set(losses)) == 4
    trainer.resume(tmp_path / "start.npz")
    assert [trainer.step(batch) for _ in range(4)] == losses


def _normalized(batch=8):
    g = Graph("normalized")
    x = g.batch_norm("bn", g.conv("conv", "x", 2, 4), 4)
    pooled = g("Flatten", g("GlobalAveragePool", g("Relu", x)))
    return g.model([batch, 2, 4, 4], [batch, 10], g.linear("head", pooled, 4, 10))


@pytest.mark.extended
def test_running_statistics_follow_unless_the_layer_is_frozen():
    model, batch = _normalized(), batch_for(_normalized())
    trainer = compile_training(model, "cross_entropy", SGD(lr=0.0))
    trainer.step(batch)
    assert np.abs(trainer.weights["bn.running_mean"]).max() > 0
    assert np.abs(trainer.weights["bn.running_var"] - 1).max() > 1e-3
    frozen = compile_training(model, "cross_entropy", SGD(lr=0.1), train=["head.*"])
    frozen.step(batch)
    assert set(frozen.weights) == {"head.weight", "head.bias"}


@pytest.mark.extended
def test_an_operator_without_a_gradient_is_named_and_may_lie_ahead():
    g = Graph("rest")
    one = g.constant("one", 1.0, "float32")
    x = g("Mod", g.linear("fc1", "x", 8, 8), one, fmod=1)
    model = g.model([4, 8], [4, 10], g.linear("head", x, 8, 10))
    with pytest.raises(UnsupportedOperatorError, match=r"kernel mod \(nodes: mod_3\)") as failed:
        compile_training(model, "cross_entropy", SGD(lr=0.1))
    assert "\n" not in str(failed.value)
    trainer = compile_training(model, "cross_entropy", SGD(lr=0.1), train=["head.*"])
    first = trainer.step(batch_for(model))
    assert trainer.step(batch_for(model)) < first


def test_what_cannot_be_trained_is_refused():
    model = mlp()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    with pytest.raises(InputError, match="has a size that is not known"):
        compile_training(model, "cross_entropy", SGD(lr=0.1))
    with pytest.raises(InputError, match="loss is 'crossentropy'"):
        compile_training(mlp(), "crossentropy", SGD(lr=0.1))
    with pytest.raises(InputError, match="optimizer is 'adam'"):
        compile_training(mlp(), "mse", "adam")
    with pytest.raises(InputError, match="clip_norm is 0"):
        compile_training(mlp(), "mse", SGD(lr=0.1), clip_norm=0)
    with pytest.raises(InputError, match="along axis 3"):
        compile_training(mlp(), CrossEntropy(axis=3), SGD(lr=0.1))
    empty = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "none", mlp().graph.input,
                              mlp().graph.output)  # fmt: skip
    bare = helper.make_model(empty, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    with pytest.raises(ModelError, match="has no weight"):
        compile_training(bare, "mse", SGD(lr=0.1))


def test_a_schedule_that_gives_no_number_is_refused(trained):
    trainer = compile_training(mlp(), "mse", SGD(lr=lambda step: -1.0 if step else 0.1))
    batch = {"x": batch_for(mlp())["x"], "target": np.zeros((16, 10), "float32")}
    trainer.step(batch)
    with pytest.raises(InputError, match="learning rate of step 1 is -1"):
        trainer.step(batch)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (SGD(lr=0.1), {}),
        (SGD(lr=0.1, momentum=0.9), {"accumulate": 2}),
        (AdamW(lr=0.1), {"clip_norm": 1.0}),
    ],
)
def test_a_step_writes_weights_and_states_where_they_are(optimizer, options):
    model = mlp(width=64)
    trainer = compile_training(model, "cross_entropy", optimizer, **options)
    kept = dict(trainer._state.arrays)
    batch = batch_for(model)
    if "accumulate" in options:
        batch = {name: np.concatenate([array] * 2) for name, array in batch.items()}
    before = trainer.weights
    for _ in range(2):
        trainer.step(batch)
    # A kernel of a few elements writes some of them twice, and so not in place.
    large = {name for name, array in kept.items() if array.size >= 64}
    assert {n for n, one in trainer._state.arrays.items() if one is not kept[n]}.isdisjoint(large)
    assert len(large) == 3 * (1 + len(optimizer.slots) + ("accumulate" in options))
    assert not np.array_equal(trainer.weights["fc1.weight"], before["fc1.weight"])


_KILLED = """
import sys
from training_models import batch_for, compile_training, mlp
from tvm_ext.training import Adam

(path,) = sys.argv[1:]
trainer = compile_training(mlp(), "cross_entropy", Adam(lr=1e-2), opt_level="O1", threads=1)
while True:
    trainer.step(batch_for(mlp(), trainer.steps))
    trainer.save(path)
    print(trainer.steps, flush=True)
"""


@pytest.mark.extended
def test_training_that_was_killed_goes_on_to_the_same_weights(tmp_path):
    path = tmp_path / "checkpoint.npz"
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        for line in process.stdout:
            if int(line) >= 5:
                break
        # Wherever it is: in a step, or while it writes the file.
        process.kill()
    resumed, whole = (
        compile_training(mlp(), "cross_entropy", Adam(lr=1e-2), opt_level="O1", threads=1)
        for _ in range(2)
    )
    resumed.resume(path)
    assert resumed.steps >= 5
    steps = resumed.steps + 3
    for trainer in (resumed, whole):
        while trainer.steps < steps:
            trainer.step(batch_for(mlp(), trainer.steps))
    for name, array in whole.weights.items():
        np.testing.assert_array_equal(resumed.weights[name], array)


@pytest.mark.extended
def test_classes_that_are_masked_leave_the_loss_a_number():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Where", ["kept", "a", "masked"], ["logits"]),
    ]
    stored = {
        "w": np.eye(3, dtype=np.float32),
        "kept": np.array([True, True, False]),
        "masked": np.float32(-np.inf),
    }
    graph = helper.make_graph(
        nodes,
        "masked",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [2, 3])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    trainer = compile_training(proto, "cross_entropy", SGD(lr=0.1))
    x = np.array([[1, 2, 5], [0, 1, 2]], np.float32)
    batch = {"x": x, "target": np.array([0, 1])}
    wanted = np.mean(np.log(1 + np.exp(np.array([1.0, -1.0]))))
    np.testing.assert_allclose(trainer.step(batch), wanted, rtol=1e-5)
    assert np.isfinite(trainer.step(batch))


def _deep(batch=256, width=8, layers=4):
    g = Graph("deep")
    x = g.linear("first", "x", width, width)
    for layer in range(layers):
        scaled = g("Mul", g("Erf", x), g.weight(f"scale{layer}", width))
        x = g.linear(f"fc{layer}", g("Add", x, g("Sigmoid", scaled)), width, width)
    return g.model([batch, width], [batch, 10], g.linear("head", x, width, 10))


@pytest.mark.slow
def test_what_does_not_fit_is_computed_again_with_the_same_numbers():
    model = _deep()
    options = {"threads": 1, "opt_level": "O1"}
    free = compile_training(model, "cross_entropy", SGD(lr=0.1), **options)
    limit = free.program.report.memory.planned_peak_bytes // 2
    small = compile_training(model, "cross_entropy", SGD(lr=0.1), memory_limit=limit, **options)
    assert small.program.report.memory.planned_peak_bytes <= limit
    assert small.program.report.memory.limit.calls_again > 0
    batch = batch_for(model)
    assert [small.step(batch) for _ in range(3)] == [free.step(batch) for _ in range(3)]
    with pytest.raises(BuildError, match=r"expected at most 512"):
        compile_training(model, "cross_entropy", SGD(lr=0.1), memory_limit=512, **options)


@pytest.mark.extended
def test_a_batch_in_parts_needs_half_and_gives_the_same_losses():
    """The hidden layer of all rows is more than the limit; one label counts for nothing."""
    model = mlp(256, 64)
    options = {"threads": 1, "opt_level": "O1"}
    free = compile_training(model, "cross_entropy", Adam(lr=0.01), **options)
    limit = free.program.report.memory.planned_peak_bytes // 2
    small = compile_training(model, "cross_entropy", Adam(lr=0.01), memory_limit=limit, **options)
    assert small.micro_batches > free.micro_batches == 1
    assert small.program.report.memory.planned_peak_bytes <= limit
    batch = batch_for(model)
    batch["target"][3] = -100
    for _ in range(3):
        assert small.step(batch) == pytest.approx(free.step(batch), abs=1e-5)
    for name, weight in free.weights.items():
        np.testing.assert_allclose(small.weights[name], weight, rtol=0, atol=1e-4)


@pytest.mark.extended
def test_a_mean_over_the_batch_is_taken_in_parts():
    model = mlp(64, 64)
    options = {"threads": 1, "opt_level": "O1"}
    free = compile_training(model, "mse", SGD(lr=0.1), **options)
    limit = free.program.report.memory.planned_peak_bytes // 2
    small = compile_training(model, "mse", SGD(lr=0.1), memory_limit=limit, **options)
    assert small.micro_batches > 1
    batch = {"x": batch_for(model)["x"], "target": np.ones((64, 10), np.float32)}
    for _ in range(2):
        assert small.step(batch) == pytest.approx(free.step(batch), rel=1e-5)


def test_what_is_refused_is_tried_in_parts_of_its_rows(monkeypatch):
    """The first input has no rows; passes may come from an iterator."""
    made = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"]),
            helper.make_node("Mul", ["product", "scale"], ["y"]),
        ],
        "scaled",
        [made("scale", TensorProto.FLOAT, []), made("x", TensorProto.FLOAT, [8, 3])],
        [made("y", TensorProto.FLOAT, [8, 4])],
        [numpy_helper.from_array(np.ones((3, 4), np.float32), "w")],
    )
    left_out = []

    def refused(mod, *, disabled_passes, **options):
        # Of two programs the one that updates weights comes first.
        assert list(mod["main"].attrs[DONATED]) == ["w"]
        left_out.append(list(disabled_passes))
        needed = 100 - len(left_out)
        raise MemoryLimitError("too much", 50, needed, 10)

    monkeypatch.setattr("tvm_ext.training.trainer.compile", refused)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    with pytest.raises(MemoryLimitError) as error:
        compile_training(model, "mse", SGD(lr=0.1), accumulate=2, disabled_passes=iter(["FuseTIR"]))
    assert left_out == [["FuseTIR"], *[["FuseTIR", "MultiOutputFusion"]] * 3]
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.needed) == ("too much", 96)


@pytest.mark.extended
def test_a_batch_whose_items_have_constants_of_their_own_is_not_taken_in_parts():
    """All parts would be computed with those of the first."""

    def compiled(offset):
        g = Graph("offsets")
        offsets = g.constant("offsets", offset((64, 64)), "float32")
        hidden = g("Relu", g("Add", g.linear("fc1", "x", 20, 64), offsets))
        model = g.model([64, 20], [64, 10], g.linear("head", hidden, 64, 10))
        options = {"threads": 1, "opt_level": "O1", "train": ["head.*"], "memory_limit": 26_000}
        return compile_training(model, "cross_entropy", SGD(lr=0.1), **options)

    assert compiled(np.ones).micro_batches == 2
    with pytest.raises(MemoryLimitError):
        compiled(np.random.default_rng(0).standard_normal)


@pytest.mark.extended
def test_what_a_batch_decides_together_is_not_taken_in_parts():
    """A batch normalisation has statistics of all rows."""
    options = {"threads": 1, "opt_level": "O1", "memory_limit": 4096}
    with pytest.raises(MemoryLimitError, match=r"expected at most 4\.00 KiB") as error:
        compile_training(resnet_block(), "cross_entropy", SGD(lr=0.1), **options)
    assert error.value.needed > 4096
