"""Batches that are cut into micro-batches: what is computed, when, and of which models."""

import multiprocessing
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from operator_models import by_runtime
from small_models import model, node, rand, value
from thoroughness import one_in
from unoptimised import HOST

import tvm_ext
from tvm_ext.compiler import kernel_records
from tvm_ext.errors import InputError
from tvm_ext.report.records import MicroBatchRecord, RunWork, SizesRecord
from tvm_ext.runner import shares_of_batch


@pytest.fixture(autouse=True)
def _small_items_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models as small as these are run whole."""
    monkeypatch.setattr(kernel_records, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(kernel_records, "_OWN_TO_WEIGHTS", 0.0)
    monkeypatch.setattr(kernel_records, "_WORK_TO_CALLS", 0.0)
    monkeypatch.setenv("TVM_EXT_CACHE", "off")


def network() -> onnx.ModelProto:
    """A convolution, a product with weights, a softmax; two outputs, and an input for all items."""
    nodes = [
        node("Conv", ["x", "k"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["c"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("MatMul", ["f", "w"], ["m"]),
        node("Add", ["m", "bias"], ["b"]),
        node("Softmax", ["b"], ["y"], axis=1),
        node("Relu", ["c"], ["z"]),
    ]
    inputs = [value("x", ["N", 3, 8, 8]), value("bias", [1, 5])]
    outputs = [value("y", ["N", 5]), value("z", ["N", 4, 8, 8])]
    return model(nodes, inputs, outputs, k=rand(4, 3, 3, 3), w=rand(4, 5))


def feeds(batch: int) -> dict[str, np.ndarray]:
    return {"x": rand(batch, 3, 8, 8, seed=batch), "bias": rand(1, 5)}


def shares(size: int, items: int, threads: int) -> list[list[int]] | None:
    """The sizes of micro-batches, by thread; that they are all of the batch is checked."""
    found = shares_of_batch(size, items, threads)
    if found is None:
        return None
    assert [i for share in found for part in share for i in range(size)[part]] == list(range(size))
    return [[part.stop - part.start for part in share] for share in found]


def test_items_are_shared_out_evenly() -> None:
    assert shares(8, 1, 2) == [[1] * 4, [1] * 4]
    assert shares(8, 4, 2) == [[4], [4]]
    assert shares(8, 3, 2) == [[2, 2], [2, 2]]
    assert shares(19, 4, 2) == [[3, 3, 4], [3, 3, 3]]
    assert shares(4, 2, 1) == [[2, 2]]


def test_few_items_and_uneven_shares_stay_together() -> None:
    assert shares(2, 4, 2) is None
    assert shares(3, 1, 2) is None
    assert shares(3, 2, 1) is None
    assert shares(1, 1, 1) is None
    assert shares(1, 1, 8) is None
    assert shares(9, 1, 8) is None


def test_micro_batches_grow_where_items_are_small() -> None:
    record = MicroBatchRecord("N", 3.0, 100)
    assert [record.items_for(n) for n in (100, 200, 300, 10, 10_000)] == [4, 2, 1, 32, 1]


@pytest.mark.extended
@pytest.mark.parametrize("threads", one_in(3, [1, 2, 3]))
def test_results_are_those_of_a_whole_run(threads: int, tmp_path: Path) -> None:
    made = network()
    compiled = tvm_ext.compile(made, HOST, threads=threads)
    assert compiled.report.micro_batch is not None
    assert compiled.report.micro_batch.dimension == "N"
    compiled.save(tmp_path / "model.tvmx")
    for one in (compiled, tvm_ext.load(tmp_path / "model.tvmx")):
        for batch in (1, 2, 6, 7, 12):
            given = feeds(batch)
            assert one._shares(given) == shares_of_batch(batch, 1, one._threads)
            wanted = by_runtime(made, given)
            out = {"z": np.empty_like(wanted[1])}
            for found in (one.run(given), one.run(given, out=out)):
                for name, right in zip(("y", "z"), wanted, strict=True):
                    np.testing.assert_allclose(found[name], right, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(out["z"], wanted[1], rtol=1e-5, atol=1e-6)
            bound = one.io_binding(given)
            for factor in (1, 2):
                bound.inputs["x"][:] = factor * given["x"]
                bound.run()
                (right, _) = by_runtime(made, bound.inputs)
                np.testing.assert_allclose(bound.out["y"], right, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_range_without_one_item_is_run_whole() -> None:
    compiled = tvm_ext.compile(network(), HOST, input_shapes={"x": ["2:8", 3, 8, 8]}, threads=2)
    assert compiled.report.micro_batch is None
    compiled = tvm_ext.compile(network(), HOST, input_shapes={"x": ["1:8", 3, 8, 8]}, threads=2)
    given = feeds(8)
    assert compiled._shares(given) is not None
    np.testing.assert_allclose(compiled.run(given)["y"], by_runtime(network(), given)[0], rtol=1e-5)


@pytest.mark.extended
def test_the_threads_of_a_run_decide() -> None:
    compiled = tvm_ext.compile(network(), HOST, threads=2)
    given = feeds(4)
    whole = compiled.run(given, threads=1)
    assert compiled.run(given)["y"].tobytes() == whole["y"].tobytes()
    with compiled.runner(2) as runner:
        found = [runner.submit(given) for _ in range(6)]
        assert {one.result()["y"].tobytes() for one in found} == {whole["y"].tobytes()}


@pytest.mark.extended
def test_wrong_inputs_are_refused_as_by_a_whole_run() -> None:
    compiled = tvm_ext.compile(network(), HOST, threads=2)
    with pytest.raises(InputError, match="expected"):
        compiled.run({**feeds(4), "x": rand(4, 3, 8, 9)})
    with pytest.raises(InputError, match="bias"):
        compiled.run({"x": feeds(4)["x"]})


def _run_in_fork(compiled: tvm_ext.CompiledModel, wanted: bytes) -> None:
    assert compiled.run(feeds(4))["y"].tobytes() == wanted


@pytest.mark.extended
def test_a_copy_of_the_process_has_threads_of_its_own() -> None:
    compiled = tvm_ext.compile(network(), HOST, threads=2)
    wanted = compiled.run(feeds(4))["y"].tobytes()
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_run_in_fork, args=(compiled, wanted))
    child.start()
    child.join(60)
    assert child.exitcode == 0


def one_operator(
    operator: str, output: list[int | str | None], **attributes: object
) -> onnx.ModelProto:
    nodes = [node(operator, ["x"], ["y"], **attributes)]
    return model(nodes, [value("x", ["N", 4, 6])], [value("y", output)])


@pytest.mark.parametrize(
    "made",
    [
        one_operator("Softmax", ["N", 4, 6], axis=0),
        one_operator("Transpose", [4, "N", 6], perm=[1, 0, 2]),
        one_operator("ReduceMax", [1, 4, 6], axes=[0]),
        model(
            [node("CumSum", ["x", "axis"], ["y"])],
            [value("x", ["N", 4])],
            [value("y", ["N", 4])],
            axis=np.array(0),
        ),
        model(
            [node("Slice", ["x", "first", "last", "axes", "step"], ["y"])],
            [value("x", ["N", 4])],
            [value("y", ["N", 4])],
            first=np.array([-1]),
            last=np.array([-(2**40)]),
            step=np.array([-1]),
            axes=np.array([0]),
        ),
        model(
            [
                node("Shape", ["x"], ["s"]),
                node("Cast", ["s"], ["f"], to=1),
                node("Mul", ["x", "f"], ["y"]),
            ],
            [value("x", ["N", 2])],
            [value("y", ["N", 2])],
        ),
        model(
            [node("Transpose", ["x"], ["t"], perm=[1, 0]), node("MatMul", ["t", "x"], ["y"])],
            [value("x", ["N", 4])],
            [value("y", [4, 4])],
        ),
        model(
            [
                node("Concat", ["x", "x"], ["c"], axis=0),
                node("Split", ["c", "sizes"], ["a", "b"], axis=0),
                node("Exp", ["b"], ["e"]),
                node("Add", ["a", "e"], ["z"]),
                node("Shape", ["x"], ["s"], end=1),
                node("Concat", ["s", "rest"], ["to"], axis=0),
                node("Reshape", ["z", "to"], ["y"]),
            ],
            [value("x", ["N", 4])],
            [value("y", ["N", 4])],
            sizes=np.array([8, 8]),
            rest=np.array([4]),
        ),
        model(
            [node("Reshape", ["x", "to"], ["r"]), node("Exp", ["r"], ["y"])],
            [value("x", ["N", 4])],
            [value("y", ["N", 4])],
            to=np.array([8, 4]),
        ),
    ],
    ids=["softmax", "transpose", "maximum", "sum", "backwards", "size", "gram", "split", "fixed"],
)
def test_items_that_meet_are_computed_together(made: onnx.ModelProto) -> None:
    compiled = tvm_ext.compile(made, HOST, threads=2)
    assert compiled.report.micro_batch is None
    shape = [8 if isinstance(size, str) else size for size in compiled.inputs[0].shape]
    x = rand(*shape)
    (wanted,) = by_runtime(made, {"x": x})
    np.testing.assert_allclose(compiled.run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-5)


def test_reshapes_that_mix_items_are_seen() -> None:
    """Rows of [N, 4] are columns of [4, N]: a sum over them is one of several items."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Unsqueeze", ["n", "axes"], ["u"]),
        node("Concat", ["four", "u"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["r"]),
        node("Softmax", ["r"], ["q"], axis=1),
        node("Transpose", ["q"], ["y"], perm=[1, 0]),
    ]
    numbers = {"zero": np.array(0), "axes": np.array([0]), "four": np.array([4])}
    made = model(nodes, [value("x", ["N", 4])], [value("y", ["N", 4])], **numbers)
    compiled = tvm_ext.compile(made, HOST, threads=2)
    assert compiled.report.micro_batch is None
    (wanted,) = by_runtime(made, {"x": (x := rand(8, 4))})
    np.testing.assert_allclose(compiled.run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-6)


def test_what_calls_take_makes_no_item_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of many small kernels was cut into runs that calls take most of the time of."""
    monkeypatch.undo()
    work = RunWork(1e3, 1e3, 20e-6, "1000 * N", "1000 * N")
    nominal = SizesRecord({"N": 1}, None, "", 1e3, 20e-6, work)
    light = kernel_records.micro_batch(nominal, "N", 10, 19e-6)
    heavy = kernel_records.micro_batch(nominal, "N", 10, 1e-6)
    assert light is not None
    assert light.items == pytest.approx(500)
    assert heavy is not None
    assert heavy.items == pytest.approx(500 / 19)
    many = kernel_records.micro_batch(
        replace(nominal, work=replace(work, estimated_seconds=201e-6)), "N", 10, 200e-6
    )
    assert many is not None
    assert many.items == pytest.approx(2000)
    assert kernel_records.micro_batch(nominal, "N", 10, 20e-6) is None
