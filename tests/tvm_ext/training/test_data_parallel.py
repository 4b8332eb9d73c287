"""Training on two processes: the numbers of one, and what happens when one of them ends."""

import os
import signal
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper
from training_models import Graph, batch_for, mlp
from training_models import compile_training as compile_unoptimised
from tvm import relax

from tvm_ext.errors import InputError, RunError
from tvm_ext.hardware.targets import program_target
from tvm_ext.relay_passes.sharding.collective_cost import CollectiveCost
from tvm_ext.training import SGD, Adam, Trainer, compile_training, gradient_buckets
from tvm_ext.training.gradient_buckets import BUCKET_BYTES, GradientBuckets

# The rounding of sums over a batch in another order, after 30 steps.
_TOLERANCE = 1e-5


def _trainer(devices: int, accumulate: int = 1) -> Trainer:
    """For batches of 16, by equal parts for each device and pass."""
    return compile_training(
        mlp(16 // devices // accumulate),
        "cross_entropy",
        Adam(lr=1e-2),
        opt_level="O1",
        threads=1,
        clip_norm=1.0,
        devices=devices,
        accumulate=accumulate,
    )


def _batches(first: int, count: int) -> list[dict[str, np.ndarray]]:
    return [batch_for(mlp(16), seed) for seed in range(first, first + count)]


@pytest.fixture(scope="module")
def two() -> Trainer:
    trainer = _trainer(2)
    yield trainer
    trainer.program.close()


@pytest.fixture
def start(two: Trainer, tmp_path: Path) -> Path:
    """The file of a checkpoint of the trainer."""
    path = tmp_path / "start.npz"
    two.save(path)
    return path


@pytest.mark.extended
def test_the_curve_is_that_of_one_process(two: Trainer) -> None:
    one = _trainer(1)
    batches = _batches(0, 3) * 10
    losses = [trainer.fit(batches, progress=False) for trainer in (two, one)]
    assert losses[1][-1] < losses[1][0]
    np.testing.assert_allclose(*losses, rtol=0, atol=_TOLERANCE)
    for name, weight in one.weights.items():
        np.testing.assert_allclose(two.weights[name], weight, rtol=0, atol=_TOLERANCE)


@pytest.mark.extended
def test_a_run_on_other_weights_leaves_those_that_are_kept(two: Trainer) -> None:
    two.step(*_batches(0, 1))
    zeros = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in two.program.inputs}
    weights = two.weights
    loss, *made = two.program.run(zeros).values()
    assert loss == pytest.approx(np.log(10))
    assert len(made) == len(two.program.outputs) - 1
    assert all(np.array_equal(two.weights[name], one) for name, one in weights.items())
    steps = two.steps
    two.step(*_batches(1, 1))
    assert two.steps == steps + 1


def test_small_gradients_and_the_loss_are_exchanged_together(two: Trainer) -> None:
    two.step(*_batches(0, 1))
    labels, planned = two.program.report.sharding.collectives
    nbytes = sum(two.weights[name].nbytes for name in two.trained) + 4
    assert (labels.nbytes, planned.nbytes) == (4, nbytes)
    assert two.program.exchanged == {"all-reduce": nbytes + 4}


def deep() -> onnx.ModelProto:
    g = Graph("deep")
    x = "x"
    for number in range(3):
        x = g("Relu", g.linear(f"fc{number}", x, 32, 32))
    return g.model([8, 32], [8, 10], g.linear("head", x, 32, 10))


@pytest.mark.slow
def test_exchanges_go_on_while_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_buckets, "BUCKET_BYTES", 6000)
    batch = {"x": np.random.default_rng(0).standard_normal((16, 32), np.float32),
             "target": np.arange(16) % 10}  # fmt: skip
    losses, weights, beside = [], [], []
    for disabled in ([], ["AsyncAllReduce"]):
        trainer = compile_unoptimised(
            *(deep(), "cross_entropy", Adam(lr=1e-2)),
            opt_level="O1",
            clip_norm=0.1,
            disabled_passes=disabled,
            devices=2,
        )
        losses.append([trainer.step(batch) for _ in range(5)])
        weights.append(trainer.weights)
        calls = trainer.program.report.sharding.collectives
        beside.append([one.kernels_beside for one in calls])
        trainer.program.close()
    # The first is of the number of labels; the others are buckets, the first layer's the last.
    assert len(beside[0]) == 1 + 3
    assert min(beside[0][1:-1]) > 0
    assert beside[1] == [0] * 4
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]
    assert all(np.array_equal(weights[0][name], one) for name, one in weights[1].items())


@pytest.mark.extended
def test_labels_that_count_for_nothing_are_those_of_all_devices() -> None:
    two, one = _trainer(2), _trainer(1)
    batch = batch_for(mlp(16))
    batch["target"][:7] = -100
    losses = [[trainer.step(batch) for _ in range(3)] for trainer in (two, one)]
    np.testing.assert_allclose(*losses, rtol=0, atol=_TOLERANCE)
    batch["target"][:] = -100
    assert two.step(batch) == one.step(batch) == 0
    two.program.close()


def test_gradients_add_up_on_each_device_ahead_of_one_exchange(tmp_path: Path) -> None:
    two, one = _trainer(2, accumulate=4), _trainer(1)
    batches = _batches(0, 3) * 5
    losses = [trainer.fit(batches, progress=False) for trainer in (two, one)]
    np.testing.assert_allclose(*losses, rtol=0, atol=_TOLERANCE)
    for name, weight in one.weights.items():
        np.testing.assert_allclose(two.weights[name], weight, rtol=0, atol=_TOLERANCE)
    # Of the last pass: the number of labels that count, and one bucket.
    nbytes = sum(two.weights[name].nbytes for name in two.trained) + 4
    assert two.program.exchanged == {"all-reduce": nbytes + 4}
    two.save(tmp_path / "checkpoint.npz")
    expected = two.step(batches[0])
    two.program.close()
    two.resume(tmp_path / "checkpoint.npz")
    assert two.step(batches[0]) == expected
    two.program.close()


def test_what_was_killed_goes_on_bit_for_bit(two: Trainer, start: Path) -> None:
    expected = two.fit(_batches(0, 3), progress=False)
    weights = two.weights
    two.resume(start)
    two.step(*_batches(0, 1))
    two.save(start)
    workers = [
        one
        for one in psutil.Process().children(recursive=True)
        if "disco_worker" in str(one.cmdline())
    ]
    os.kill(workers[-1].pid, signal.SIGKILL)
    with pytest.raises(RunError, match="signal 9"):
        two.step(*_batches(1, 1))
    with pytest.raises(RunError, match="what they kept with them; expected them to run") as failed:
        two.step(*_batches(1, 1))
    assert "\n" not in str(failed.value)
    two.resume(start)
    assert two.fit(_batches(1, 2), progress=False) == expected[1:]
    assert all(np.array_equal(two.weights[name], one) for name, one in weights.items())


@pytest.mark.slow
def test_each_device_draws_a_mask_of_its_own() -> None:
    g = Graph("dropped")
    x = g("Dropout", g.linear("fc1", "x", 8, 64))
    model = g.model([4, 8], [4, 10], g.linear("head", x, 64, 10))
    one, two = (
        compile_training(model, "cross_entropy", SGD(lr=0.0), opt_level="O1", devices=devices)
        for devices in (1, 2)
    )
    batch = batch_for(model)
    twice = {name: np.concatenate([array, array]) for name, array in batch.items()}
    assert [spec.shape for spec in two.inputs] == [(8, 8), (8,)]
    # The devices draw what one draws in its first two steps.
    expected = np.mean([one.step(batch), one.step(batch)])
    assert two.step(twice) == pytest.approx(expected, abs=1e-6)
    two.program.close()


@pytest.mark.slow
def test_an_input_without_rows_is_whole_in_each_pass() -> None:
    def model(batch: int) -> onnx.ModelProto:
        g = Graph("scaled")
        made = g.model([batch, 8], [batch, 10], g("Mul", g.linear("fc", "x", 8, 10), "scale"))
        made.graph.input.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, []))
        return made

    batch = {**batch_for(model(8)), "scale": np.array(0.5, "float32")}
    losses = {}
    for devices, accumulate in [(1, 1), (1, 2), (2, 1), (2, 2)]:
        rows = 8 // devices // accumulate
        trainer = compile_training(
            *(model(rows), "cross_entropy", SGD(lr=0.1)),
            opt_level="O1",
            devices=devices,
            accumulate=accumulate,
        )
        losses[devices, accumulate] = [trainer.step(batch) for _ in range(2)]
        if devices > 1:
            trainer.program.close()
    for found in losses.values():
        np.testing.assert_allclose(found, losses[1, 1], rtol=0, atol=_TOLERANCE)


def test_buckets_hold_what_is_small_by_type() -> None:
    shapes = [((8,), "float32"), ((BUCKET_BYTES // 4,), "float32"), ((3, 2), "float64"),
              ((5,), "float32"), ((BUCKET_BYTES // 4 - 6,), "float32")]  # fmt: skip
    params = [
        relax.Var(f"g{n}", relax.TensorType(shape, dtype))
        for n, (shape, dtype) in enumerate(shapes)
    ]
    buckets = GradientBuckets(CollectiveCost(2, program_target("cpu")))
    bb = relax.BlockBuilder()
    with bb.function("main", params):
        with bb.dataflow():
            means = buckets.means(bb, [], [], params)
            result = bb.emit_output(relax.Tuple(means))
        bb.emit_func_output(result)
    assert [one.ty.shape.values[0] for one in means] == [shape[0] for shape, _ in shapes]
    # The last two fill a bucket; what is as large as one is alone.
    exchanged = sorted(one.nbytes for one in buckets.collectives)
    assert exchanged == sorted([BUCKET_BYTES - 4, BUCKET_BYTES, 48, 32])


def test_what_devices_do_not_do_is_refused() -> None:
    with pytest.raises(InputError, match="0 devices were asked for"):
        compile_training(mlp(), "cross_entropy", SGD(lr=0.1), devices=0)
