"""Models compiled once, with the dynamic sizes that they have, and run at several sizes."""

import numpy as np
import onnx
import pytest
from operator_models import by_runtime
from small_models import model, node, rand, value
from thoroughness import one_in
from tvm import relax
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import RunError
from tvm_ext.onnx_frontend import import_model
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.spans import all_bindings_of

INT64, BOOL = onnx.TensorProto.INT64, onnx.TensorProto.BOOL
F = onnx.TensorProto.FLOAT


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def check(
    proto: onnx.ModelProto, runs: list[dict], level: str = "O3", tolerance: float = 1e-5
) -> tvm_ext.CompiledModel:
    """One compilation, several runs, each against ONNX Runtime."""
    compiled = tvm_ext.compile(proto, HOST, opt_level=level)
    for feeds in runs:
        wanted = by_runtime(proto, feeds)
        for got, want in zip(compiled.run(feeds).values(), wanted, strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    return compiled


@pytest.mark.extended
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("rest", [(0, -1), (4, -1), (-1, 2)])
def test_reshape_by_a_size_of_the_input(rest: tuple, narrow: bool) -> None:
    nodes = [node("Shape", ["x"], ["s"])]
    if narrow:
        nodes += [
            node("Cast", ["s"], ["s32"], to=onnx.TensorProto.INT32),
            node("Slice", ["s32", "zero", "one", "zero"], ["b32"]),
            node("Cast", ["b32"], ["b"], to=INT64),
        ]
    else:
        nodes += [node("Gather", ["s", "zero"], ["b"])]
    nodes += [node("Concat", ["b", "rest"], ["t"], axis=0), node("Reshape", ["x", "t"], ["y"])]
    weights = {"zero": ints(0), "one": ints(1), "rest": ints(*rest)}
    proto = model(nodes, [value("x", ["b", 4, "n"])], [value("y", [None] * 3)], **weights)
    check(proto, [{"x": rand(2, 4, 6)}, {"x": rand(1, 4, 8)}])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_to_the_size_of_another_tensor(mode: str) -> None:
    nodes = [
        node("MaxPool", ["x"], ["small"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", ["small"], ["s"]),
        node("Shape", ["x"], ["l"]),
        node("Slice", ["s", "zero", "two"], ["head"]),
        node("Slice", ["l", "two", "four"], ["tail"]),
        node("Concat", ["head", "tail"], ["sizes"], axis=0),
        node("Resize", ["small", "", "", "sizes"], ["large"], mode=mode),
        node("Add", ["large", "x"], ["y"]),
    ]
    weights = {"zero": ints(0), "two": ints(2), "four": ints(4)}
    proto = model(nodes, [value("x", ["b", 3, "h", "w"])], [value("y", [None] * 4)], **weights)
    check(proto, [{"x": rand(1, 3, 8, 12)}, {"x": rand(2, 3, 7, 9)}])


@pytest.mark.extended
@pytest.mark.parametrize("join", one_in(2, ["Add", "Concat"]))
def test_feature_maps_of_two_scales_join(join: str) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["half"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", ["half", "w"], ["quarter"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Resize", ["quarter", "", "scales"], ["up"], mode="nearest",
             coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        node(join, ["up", "half"], ["y"], **({"axis": 1} if join == "Concat" else {})),
    ]  # fmt: skip
    weights = {"w": rand(3, 3, 3, 3), "scales": np.array([1, 1, 2, 2], np.float32)}
    proto = model(nodes, [value("x", ["b", 3, "h", "w"])], [value("y", [None] * 4)], **weights)
    runs = [{"x": rand(1, 3, 16, 24)}, {"x": rand(2, 3, 8, 7)}]
    compiled = check(proto, runs, tolerance=1e-4)
    with pytest.raises(RunError):
        compiled.run({"x": rand(1, 3, 18, 24)})


def test_slice_to_a_length_of_the_run() -> None:
    nodes = [node("Slice", ["x", "zero", "n", "one"], ["y"])]
    inputs = [value("x", ["b", "t"]), value("n", [1], INT64)]
    proto = model(nodes, inputs, [value("y", [None] * 2)], zero=ints(0), one=ints(1))
    check(proto, [{"x": rand(2, 9), "n": ints(4)}, {"x": rand(1, 5), "n": ints(-1)}])


@pytest.mark.extended
@pytest.mark.parametrize("operator", ["Expand", "Tile"])
@pytest.mark.parametrize("computed", [False, True])
def test_copies_as_many_as_a_size(operator: str, computed: bool) -> None:
    inputs = [value("x", [1, "t"]), value("z", ["n", 3])]
    if computed:
        inputs[1] = value("z", [2], INT64)
        nodes = [node(operator, ["x", "z"], ["y"])]
        runs = [{"x": rand(1, 4), "z": ints(3, 1)}, {"x": rand(1, 2), "z": ints(2, 1)}]
    else:
        nodes = [
            node("Shape", ["z"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Concat", ["n", "one"], ["t"], axis=0),
            node(operator, ["x", "t"], ["y"]),
        ]
        runs = [{"x": rand(1, 4), "z": rand(2, 3)}, {"x": rand(1, 5), "z": rand(1, 3)}]
    weights = {} if computed else {"zero": ints(0), "one": ints(1)}
    check(model(nodes, inputs, [value("y", [None] * 2)], **weights), runs)


@pytest.mark.slow
def test_attention_mask_broadcasts() -> None:
    nodes = [
        node("Transpose", ["q"], ["k"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "k"], ["scores"]),
        node("Unsqueeze", ["mask", "axes"], ["wide"]),
        node("Where", ["wide", "scores", "low"], ["masked"]),
        node("Softmax", ["masked"], ["y"], axis=-1),
    ]
    inputs = [value("q", ["b", 2, "s", 4]), value("mask", ["mb", "ms"], BOOL)]
    weights = {"axes": ints(1, 2), "low": np.array(-1e4, np.float32)}
    proto = model(nodes, inputs, [value("y", [None] * 4)], **weights)
    mask = rand(2, 5) < 0.5
    runs = [{"q": rand(2, 2, 5, 4), "mask": mask}, {"q": rand(2, 2, 5, 4), "mask": mask[:1]}]
    check(proto, [*runs, {"q": rand(2, 2, 5, 4), "mask": mask[:, :1]}])


@pytest.mark.extended
@pytest.mark.parametrize("level", one_in(2, ["O0", "O3"]))
def test_convolution_and_pools_of_odd_sizes(level: str) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("MaxPool", ["c"], ["m"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("AveragePool", ["m"], ["p"], kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1]),
        node("Relu", ["p"], ["r"]),
        node("GlobalAveragePool", ["r"], ["g"]),
        node("Flatten", ["g"], ["y"]),
    ]
    inputs, outputs = (
        [value("x", ["b", 3, "h", "w"])],
        [value("r", [None] * 4), value("y", [None] * 2)],
    )
    proto = model(nodes, inputs, outputs, w=rand(4, 3, 3, 3))
    check(proto, [{"x": rand(1, 3, 15, 22)}, {"x": rand(2, 3, 9, 7)}], level, 1e-4)


def squeeze_if_one() -> onnx.ModelProto:
    """As PyTorch exports ``x.squeeze(-1)``: branches of different rank."""
    then = onnx.helper.make_graph(
        [node("Squeeze", ["x", "last"], ["t"])], "then", [], [value("t", [None] * 2)]
    )
    other = onnx.helper.make_graph(
        [node("Identity", ["x"], ["e"])], "else", [], [value("e", [None] * 3)]
    )
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "last"], ["n"]),
        node("Equal", ["n", "one"], ["c"]),
        node("If", ["c"], ["i"], then_branch=then, else_branch=other),
        node("MatMul", ["i", "w"], ["y"]),
    ]
    weights = {"last": ints(-1), "one": ints(1), "w": rand(4, 3)}
    return model(nodes, [value("x", ["b", 4, "n"])], [value("y", [None] * 2)], **weights)


@pytest.mark.extended
def test_squeeze_where_the_size_is_one() -> None:
    check(squeeze_if_one(), [{"x": rand(2, 4, 1)}, {"x": rand(5, 4, 1)}, {"x": rand(2, 4, 4)}])


@pytest.mark.extended
@pytest.mark.parametrize("operator", one_in(4, ["Add", "Where", "MatMul", "Gemm", "Concat"]))
def test_names_that_must_agree(operator: str) -> None:
    inputs = [value("a", ["m", "k"]), value("b", ["n", "l"])]
    names = ["c", "a", "b"] if operator == "Where" else ["a", "b"]
    extra = [node("Greater", ["a", "b"], ["c"])] if operator == "Where" else []
    attributes = {"axis": 0} if operator == "Concat" else {}
    proto = model(
        [*extra, node(operator, names, ["y"], **attributes)], inputs, [value("y", [None] * 2)]
    )
    runs = [{"a": rand(3, 3), "b": rand(3, 3, seed=1)}, {"a": rand(5, 5), "b": rand(5, 5)}]
    compiled = check(proto, runs)
    with pytest.raises(RunError):
        compiled.run({"a": rand(3, 3), "b": rand(2, 2)})


def test_names_of_which_one_may_be_one() -> None:
    inputs = [value("a", ["m", "k"]), value("b", ["n", "l"])]
    proto = model([node("Mul", ["a", "b"], ["y"])], inputs, [value("y", [None] * 2)])
    check(proto, [{"a": rand(1, 4), "b": rand(3, 1)}, {"a": rand(2, 1), "b": rand(1, 3)}])


@pytest.mark.slow
def test_a_cast_has_a_variable_as_its_value() -> None:
    """TVM's ConvertLayout gave up all layouts of a model with a cast of a call."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("ReduceSum", ["n"], ["limit"], keepdims=0),
        node("Range", ["zero", "limit", "one"], ["r"]),
        node("Reshape", ["r", "apart"], ["column"]),
        node("Mul", ["c", "column"], ["y"]),
    ]
    weights = {"w": rand(16, 16, 3, 3), "zero": np.float32(0), "one": np.float32(1)}
    weights["apart"] = ints(-1, 1)
    proto = model(
        nodes,
        [value("x", ["b", 16, "h", "w"]), value("n", [1])],
        [value("y", [None] * 4)],
        **{name: np.asarray(array) for name, array in weights.items()},
    )
    mod = import_model(proto).mod
    casts = [b for b in all_bindings_of(mod["main"]) if isinstance(b, relax.MatchCast)]
    assert casts
    assert all(isinstance(cast.value, relax.Var) for cast in casts)
    feeds = {"x": rand(1, 16, 6, 5), "n": np.array([6], np.float32)}
    compiled = tvm_ext.compile(proto, HOST)
    layouts = next(p for p in compiled.report.passes if p.name == "LayoutPlanning")
    assert not any("ConvertLayout" in decision.reason for decision in layouts.decisions)
    np.testing.assert_allclose(
        compiled.run(feeds)["y"], by_runtime(proto, feeds)[0], rtol=1e-4, atol=1e-4
    )


def test_axes_of_squeeze_are_counted_from_the_front() -> None:
    """ConvertLayout wrote outside of its memory for others, in functions without convolutions."""
    nodes = [node("Squeeze", ["x", "axes"], ["y"])]
    proto = model(nodes, [value("x", ["n", 4, 1])], [value("y", [None, 4])], axes=ints(-1))
    values = [binding.value for binding in all_bindings_of(import_model(proto).mod["main"])]
    (squeeze,) = [value for value in values if operator_name(value) == "relax.squeeze"]
    assert [int(axis) for axis in squeeze.attrs.axis] == [2]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("operator", "weights", "good", "bad", "attributes"),
    one_in(
        4,
        [
            ("Conv", [(4, 3, 1, 1)], (2, 3, 5, 5), (2, 16, 5, 5), {}),
            ("Conv", [(4, 2, 1, 1)], (2, 4, 5, 5), (2, 2, 5, 5), {"group": 2}),
            ("ConvTranspose", [(3, 4, 2, 2)], (2, 3, 5, 5), (2, 5, 5, 5), {}),
            ("Gemm", [(3, 4)], (2, 3), (2, 5), {}),
            ("Gemm", [(4, 3)], (3, 2), (5, 2), {"transA": 1, "transB": 1}),
            ("BatchNormalization", [(3,)] * 4, (2, 3, 5), (2, 4, 5), {}),
            ("InstanceNormalization", [(3,)] * 2, (2, 3, 5), (2, 4, 5), {}),
            ("RNN", [(1, 4, 3), (1, 4, 4)], (5, 2, 3), (5, 2, 4), {"hidden_size": 4}),
            ("LayerNormalization", [(3, 5)] * 2, (2, 3, 5), (2, 3, 6), {"axis": 1}),
        ],
    ),
)
def test_dynamic_channels_must_fit_the_weights(
    operator: str, weights: list, good: tuple, bad: tuple, attributes: dict
) -> None:
    """They read beyond the end of the weights, or of the input."""
    stored = {f"w{number}": abs(rand(*shape)) for number, shape in enumerate(weights)}
    names = [f"d{axis}" for axis in range(len(good))]
    nodes = [node(operator, ["x", *stored], ["y"], **attributes)]
    proto = model(nodes, [value("x", names)], [value("y", None)], **stored)
    compiled = check(proto, [{"x": rand(*good)}], tolerance=1e-4)
    with pytest.raises(RunError):
        compiled.run({"x": rand(*bad)})


def test_a_product_of_computed_rows_with_an_addend():
    """The kernel takes the size beside its tensors, which is no second addend."""
    nodes = [
        node("Pad", ["x", "pads"], ["p"]),
        node("Slice", ["p", "zero", "most", "last", "steps"], ["s"]),
        node("Transpose", ["s"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["t", "w"], ["m"]),
        node("Add", ["m", "b"], ["a"]),
        node("Sigmoid", ["a"], ["y"]),
    ]
    stored = {"pads": [0, 0, 3, 0, 0, 3], "zero": [0], "last": [2], "steps": [4]}
    stored["most"] = [2**63 - 1]
    weights = {name: np.array(numbers) for name, numbers in stored.items()}
    proto = model(
        nodes,
        [value("x", ["batch", 33, "samples"])],
        [value("y", ["batch", "frames", 33])],
        w=rand(33, 33),
        b=rand(33),
        **weights,
    )
    check(proto, [{"x": rand(2, 33, 50)}, {"x": rand(1, 33, 24)}])
