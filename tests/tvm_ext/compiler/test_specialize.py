"""Programs for exact sizes beside that for any: which runs, what they share, what is refused."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from operator_models import by_runtime
from small_models import mlp, model, node, rand, value
from thoroughness import one_in
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import InputError, TargetError
from tvm_ext.report.compile_report import CompileReport

SIZES = [{"N": 2}, {"x": [8, 16, 5]}]


def proto() -> onnx.ModelProto:
    """``softmax(relu(x @ w))`` of any batch and length, and the sizes in an output of their own."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="product"),
        node("Relu", ["m"], ["r"], name="relu"),
        node("Softmax", ["r"], ["y"], name="softmax", axis=-1),
    ]
    return model(nodes, [value("x", ["N", "L", 5])], [value("y", ["N", "L", 64])], w=rand(5, 64))


def x(batch: int, length: int) -> dict[str, np.ndarray]:
    return {"x": rand(batch, length, 5, seed=batch)}


def check(compiled: tvm_ext.CompiledModel, made: onnx.ModelProto) -> None:
    """Each size runs the program made for it, with ONNX Runtime's numbers."""
    for feeds, wanted in ((x(2, 7), 0), (x(8, 16), 1), (x(8, 15), None), (x(1, 1), None)):
        chosen = compiled.chosen_for(feeds)
        assert chosen is (compiled if wanted is None else compiled.specialized[wanted])
        (y,) = by_runtime(made, feeds)
        np.testing.assert_allclose(compiled.run(feeds)["y"], y, rtol=1e-5, atol=1e-6)
        out = np.empty_like(y)
        assert compiled.run(feeds, out={"y": out})["y"] is out
        np.testing.assert_allclose(out, y, rtol=1e-5, atol=1e-6)
        bound = compiled.io_binding(feeds)
        bound.run()
        np.testing.assert_allclose(bound.out["y"], y, rtol=1e-5, atol=1e-6)


def test_each_size_runs_its_program(tmp_path: Path) -> None:
    made = proto()
    compiled = tvm_ext.compile(made, HOST, specialize=SIZES)
    assert [one.inputs[0].shape for one in compiled.specialized] == [(2, "L", 5), (8, 16, 5)]
    assert compiled.specialized[1].outputs[0].shape == (8, 16, 64)
    check(compiled, made)
    compiled.save(tmp_path / "model.tvmx")
    check(tvm_ext.load(tmp_path / "model.tvmx"), made)


@pytest.mark.slow
def test_reports_and_profiles_tell_the_programs_apart() -> None:
    compiled = tvm_ext.compile(proto(), HOST, specialize=SIZES)
    report = compiled.report
    assert CompileReport.from_json(report.to_json()) == report
    assert report.specialized_figure == ("x: float32[2, 'L', 5] and x: float32[8, 16, 5]")
    assert report.specialized_figure in " ".join(report.to_text().split())
    names = [{kernel.name for kernel in one.kernels} for one in (report, *report.specialized)]
    assert not names[0] & names[1]
    assert not names[1] & names[2]
    # Of the exact sizes only the last are all known.
    assert [one.memory.dynamic for one in (report, *report.specialized)] == [True, True, False]
    profile = compiled.profile(x(8, 16), repeat=1)
    assert {call.kernel for call in profile.calls} == names[2]
    assert "[8, 16, 5]" in profile.to_text()


@pytest.mark.slow
def test_weights_are_there_once() -> None:
    weights = rand(512, 512)
    made = model(
        [node("MatMul", ["x", "w"], ["y"], name="product")],
        [value("x", ["N", 512])],
        [value("y", ["N", 512])],
        w=weights,
    )
    sizes = [tvm_ext.compile(made)._program.library(), None]
    compiled = tvm_ext.compile(made, specialize=[{"N": 32}, {"N": 64}])
    assert len(compiled._program.library()) < len(sizes[0]) + weights.nbytes // 2


@pytest.mark.extended
def test_a_run_that_fails_says_where() -> None:
    """Sizes that a program of exact batch leaves open can contradict each other."""
    nodes = [node("Add", ["x", "z"], ["s"], name="sum"), node("Relu", ["s"], ["y"], name="relu")]
    inputs = [value("x", ["N", "L"]), value("z", ["N", "M"])]
    made = model(nodes, inputs, [value("y", ["N", None])])
    compiled = tvm_ext.compile(made, HOST, specialize=[{"N": 2}])
    feeds = {"x": rand(2, 3), "z": rand(2, 4)}
    with pytest.raises(tvm_ext.TvmExtError, match="sizes do not fit together"):
        compiled.run(feeds)
    assert compiled.chosen_for(feeds) is compiled.specialized[0]


@pytest.mark.extended
def test_sizes_of_one_name_that_differ_are_compiled_anew() -> None:
    """As without programs for exact sizes."""
    nodes = [node("Shape", ["x"], ["s"]), node("Concat", ["s", "t"], ["y"], axis=0)]
    inputs = [value("x", ["N", "L"]), value("z", ["L"])]
    nodes[1:1] = [node("Shape", ["z"], ["t"])]
    made = model(nodes, inputs, [value("y", [3], onnx.TensorProto.INT64)])
    compiled = tvm_ext.compile(made, HOST, specialize=[{"N": 2}])
    with pytest.warns(match="compiled once more"):
        found = compiled.run({"x": rand(2, 3), "z": rand(4)})
    assert found["y"].tolist() == [2, 3, 4]


@pytest.mark.extended
def test_a_module_of_tvm_is_specialised() -> None:
    from tvm.script import ir as I
    from tvm.script import relax as R

    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
            return R.nn.relu(x)

    compiled = tvm_ext.compile(Module, HOST, specialize=[{"n": 3}])
    given = {"x": rand(3, 4)}
    assert compiled.chosen_for(given).inputs[0].shape == (3, 4)
    np.testing.assert_array_equal(compiled.run(given)["output"], np.maximum(given["x"], 0))


@pytest.mark.slow
def test_sizes_that_stay_open_keep_their_ranges() -> None:
    """Given ones, and those that follow from a convolution and from a table."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], kernel_shape=[3]),
        node("Shape", ["t"], ["s"]),
        node("Gather", ["s", "one"], ["length"]),
        node("Slice", ["table", "zero", "length", "zero"], ["cut"]),
        node("Add", ["t", "cut"], ["y"]),
    ]
    made = model(
        nodes,
        [value("x", ["N", 2, "W"]), value("t", ["N", "L"])],
        [value("c", None), value("y", None)],
        w=rand(2, 2, 3),
        table=rand(9),
        zero=np.array([0]),
        one=np.array([1]),
    )
    shapes = {"x": ["N:1:8", 2, "W"], "t": ["N:1:8", "L"]}
    compiled = tvm_ext.compile(made, HOST, input_shapes=shapes, specialize=[{"N": 2}, {"W": 5}])
    described = [[spec.describe() for spec in one.inputs] for one in compiled.specialized]
    assert described == [
        ["x: float32[2, 2, 'W' (3:)]", "t: float32[2, 'L' (0:9)]"],
        ["x: float32['N' (1:8), 2, 5]", "t: float32['N' (1:8), 'L' (0:9)]"],
    ]
    feeds = {"x": rand(3, 2, 5), "t": rand(3, 9)}
    assert compiled.chosen_for(feeds) is compiled.specialized[1]
    for found, wanted in zip(compiled.run(feeds).values(), by_runtime(made, feeds), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("specialize", "message"),
    one_in(
        3,
        [
            ({"M": 2}, "specialize: 'M' is not a dynamic dimension"),
            ({"y": [2, 3]}, "specialize: the model has no input 'y'"),
            ({"x": [2, 3]}, r"specialize: \[2, 3\] is not a shape of x: float32\['N', 6\]"),
            ({"x": [2, 7]}, r"specialize: \[2, 7\] is not a shape of x"),
            ({"x": ["N", 6]}, "fixes no dynamic size; expected sizes for N"),
            ({"N": 2, "x": [3, 6]}, "dimension 'N' is 2 and 3"),
            ({"N": 0}, "dimension 'N' cannot have size 0; expected 1"),
            ({"N": 9}, "dimension 'N' cannot have size 9; expected 1:8"),
        ],
    ),
)
def test_sizes_that_do_not_fit(specialize: dict, message: str) -> None:
    shapes = {"x": ["N:1:8", 6]} if "N" in specialize else None
    with pytest.raises(InputError, match=message):
        tvm_ext.compile(mlp(), specialize=[specialize], input_shapes=shapes)


def test_what_has_no_such_programs() -> None:
    with pytest.raises(InputError, match="fixes no dynamic size; expected a model with dynamic"):
        tvm_ext.compile(mlp(4), specialize=[{"x": [4, 6]}])
    with pytest.raises((InputError, TargetError), match="expected a CPU"):
        tvm_ext.compile(mlp(), "cuda", specialize=[{"N": 1}])


@pytest.mark.slow
def test_sizes_that_come_often_get_programs(tmp_path: Path) -> None:
    """Built beside the runs, up to the limit, and saved with the model."""
    made = proto()
    compiled = tvm_ext.compile(made, specialize="auto", specialize_limit=1)
    for length in (16, 7):
        for _ in range(50):
            compiled.run(x(8, length))
    assert compiled.wait_for_specialized(120)
    assert compiled.report.warnings == tvm_ext.compile(made).report.warnings
    assert [one.inputs[0].shape for one in compiled.specialized] == [(8, 16, 5)]
    compiled.save(tmp_path / "model.tvmx")
    for one in (compiled, tvm_ext.load(tmp_path / "model.tvmx")):
        assert one.chosen_for(x(8, 16)) is one.specialized[0]
        assert one.chosen_for(x(8, 7)) is one
        for feeds in (x(8, 16), x(8, 7), x(2, 3)):
            (y,) = by_runtime(made, feeds)
            np.testing.assert_allclose(one.run(feeds)["y"], y, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_model_that_has_changed_gets_no_more_programs(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(proto(), path)
    compiled = tvm_ext.compile(path, specialize="auto")
    onnx.save(mlp(), path)
    for _ in range(50):
        compiled.run(x(1, 2))
    assert compiled.wait_for_specialized(60)
    assert not compiled.specialized
    assert "is not what it was" in compiled.report.warnings[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"specialize": "often"}, "'often' is not a list of sizes; expected 'auto'"),
        ({"specialize": "auto", "specialize_limit": 0}, "specialize_limit is 0; expected 1"),
        ({"specialize": "auto", "target": "cuda"}, "not a CPU"),
    ],
)
def test_auto_refuses(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tvm_ext.compile(proto(), **arguments)


@pytest.mark.extended
def test_a_frozen_model_has_no_sizes_to_watch() -> None:
    compiled = tvm_ext.compile(mlp(3), specialize="auto")
    assert compiled.frequent_sizes is None
