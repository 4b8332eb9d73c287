"""Lengths up to which a model's tables go: found, said, and taken for granted by kernels."""

import numpy as np
import onnx
import pytest
from operator_models import by_runtime
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import InputError, TvmExtError

INT64 = onnx.TensorProto.INT64


def with_positions(nodes: list, cut: str = "positions") -> list:
    """Nodes that cut a table to the length of ``x``, then ``nodes``."""
    return [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["length"]),
        node("Slice", ["table", "zero", "length", "one"], [cut]),
        *nodes,
    ]


def made(nodes: list, rows: int = 12) -> onnx.ModelProto:
    return model(
        with_positions(nodes),
        [value("x", ["N", "L", 4])],
        [value("y", ["N", None, 4])],
        table=rand(1, rows, 4),
        zero=np.array([0]),
        one=np.array([1]),
    )


def test_a_table_of_positions_limits_the_length() -> None:
    proto = made([node("Add", ["x", "positions"], ["s"]), node("Relu", ["s"], ["y"])])
    compiled = tvm_ext.compile(proto, HOST)
    assert compiled.inputs[0].describe() == "x: float32['N', 'L' (0:12), 4]"
    # Nothing broadcasts, and storage is not planned for the longest: nobody asked for that.
    assert len(compiled.kernel_calls()) == 1
    assert compiled.report.memory.dynamic
    for batch, length in ((1, 1), (3, 7), (2, 12), (2, 0)):
        feeds = {"x": rand(batch, length, 4)}
        (wanted,) = by_runtime(proto, feeds)
        np.testing.assert_allclose(compiled.run(feeds)["y"], wanted, rtol=1e-6)
    with pytest.raises(InputError, match="expected a size from 0 to 12 on axis 1"):
        compiled.run({"x": rand(1, 13, 4)})


def test_a_table_of_one_row_limits_nothing() -> None:
    """One row broadcasts, and so does a length of one against a longer table."""
    proto = made([node("Add", ["x", "positions"], ["y"])], rows=1)
    compiled = tvm_ext.compile(proto, HOST)
    for length in (1, 5):
        feeds = {"x": rand(2, length, 4)}
        (wanted,) = by_runtime(proto, feeds)
        np.testing.assert_allclose(compiled.run(feeds)["y"], wanted, rtol=1e-6)


def test_a_given_range_stays_where_it_is_narrower() -> None:
    proto = made([node("Add", ["x", "positions"], ["y"])])
    compiled = tvm_ext.compile(proto, HOST, input_shapes={"x": ["N", "L:2:5", 4]})
    assert compiled.inputs[0].describe() == "x: float32['N', 'L' (2:5), 4]"
    assert len(compiled.kernel_calls()) == 1


def test_a_branch_that_need_not_run_limits_nothing() -> None:
    branches = {
        name: onnx.helper.make_graph(nodes, name, [], [value(f"{name}_y", None)])
        for name, nodes in {
            "then": [node("Add", ["x", "positions"], ["then_y"])],
            "else": [node("Neg", ["x"], ["else_y"])],
        }.items()
    }
    choice = node("If", ["flag"], ["y"], then_branch=branches["then"], else_branch=branches["else"])
    proto = made([choice])
    proto.graph.input.append(value("flag", [], onnx.TensorProto.BOOL))
    compiled = tvm_ext.compile(proto, HOST)
    feeds = {"x": rand(1, 20, 4), "flag": np.array(False)}
    np.testing.assert_array_equal(compiled.run(feeds)["y"], -feeds["x"])


@pytest.mark.extended
def test_an_image_with_pixels_has_a_known_number_of_patches() -> None:
    """Exporters divide by cutting off, which is rounding down where there is a pixel."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[4, 4], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Shape", ["x"], ["shape"]),
        node("Slice", ["shape", "two", "four"], ["size"]),
        node("Sub", ["size", "ones"], ["less"]),
        node("Div", ["less", "fours"], ["steps"]),
        node("Add", ["steps", "ones"], ["patches"]),
        node("ReduceProd", ["patches"], ["count"], keepdims=1),
        node("Concat", ["head", "count"], ["target"], axis=0),
        node("Reshape", ["c", "target"], ["r"]),
        node("Relu", ["r"], ["y"]),
    ]
    proto = model(
        nodes,
        [value("x", ["N", 3, "H", "W"])],
        [value("y", [None] * 3)],
        w=rand(8, 3, 3, 3),
        two=np.array([2]),
        four=np.array([4]),
        ones=np.array([1, 1]),
        fours=np.array([4, 4]),
        head=np.array([0, 8]),
    )
    compiled = tvm_ext.compile(proto, HOST)
    assert not [call.kernel for call in compiled.kernel_calls() if "agreed" in call.kernel]
    for size in ((9, 16), (1, 5)):
        feeds = {"x": rand(2, 3, *size)}
        (wanted,) = by_runtime(proto, feeds)
        np.testing.assert_allclose(compiled.run(feeds)["y"], wanted, rtol=1e-4, atol=1e-5)


def kernels_of_sizes(compiled: tvm_ext.CompiledModel) -> list[str]:
    """Kernels that are there because nobody knew which sizes agree."""
    words = ("broadcast", "agreed", "checked", "copy")
    return [c.kernel for c in compiled.kernel_calls() if any(word in c.kernel for word in words)]


@pytest.mark.extended
def test_a_row_less_its_first_element_behind_a_new_one_is_as_long() -> None:
    """transformers looks so for places where positions start anew."""
    nodes = [
        node("Slice", ["x", "zero", "one", "one"], ["first"]),
        node("Sub", ["first", "unit"], ["before"]),
        node("Concat", ["before", "x"], ["longer"], axis=1),
        node("Slice", ["longer", "one", "far", "one"], ["later"]),
        node("Sub", ["later", "x"], ["less"]),
        node("Neg", ["less"], ["y"]),
    ]
    numbers = {"zero": 0, "one": 1, "far": np.iinfo(np.int64).max}
    proto = model(
        nodes,
        [value("x", ["N", "L"])],
        [value("y", ["N", None])],
        unit=np.float32(1),
        **{name: np.array([number]) for name, number in numbers.items()},
    )
    compiled = tvm_ext.compile(proto, HOST)
    assert kernels_of_sizes(compiled) == []
    for shape in ((2, 5), (1, 1), (3, 0)):
        feeds = {"x": rand(*shape)}
        (wanted,) = by_runtime(proto, feeds)
        np.testing.assert_array_equal(compiled.run(feeds)["y"], wanted)


def masked() -> onnx.ModelProto:
    """Scores over old and new tokens, and a mask of any length that is cut to theirs."""
    nodes = [
        node("Concat", ["past", "new"], ["scores"], axis=2),
        node("Shape", ["scores"], ["shape"]),
        node("Gather", ["shape", "two"], ["length"]),
        node("Slice", ["mask", "zero", "length", "two"], ["cut"]),
        node("Add", ["scores", "cut"], ["masked"]),
        node("Softmax", ["masked"], ["y"], axis=-1),
    ]
    inputs = [value("past", ["N", 4, "P"]), value("new", ["N", 4, "L"])]
    return model(
        nodes,
        [*inputs, value("mask", ["N", 1, "T"])],
        [value("y", [None] * 3)],
        opset=18,
        zero=np.array([0]),
        two=np.array([2]),
    )


@pytest.mark.extended
def test_a_mask_that_is_cut_to_a_length_does_not_decide_about_it() -> None:
    proto = masked()
    compiled = tvm_ext.compile(proto, HOST)
    # The mask may be of one token, which counts for all; the scores are not copied.
    assert kernels_of_sizes(compiled) == ["broadcast"]
    assert compiled.inputs[2].describe() == "mask: float32['N', 1, 'T' (1:)]"
    for past, new, given in ((3, 2, 5), (3, 2, 9), (3, 2, 1), (0, 1, 1), (0, 1, 4), (4, 0, 4)):
        feeds = {"past": rand(2, 4, past), "new": rand(2, 4, new), "mask": rand(2, 1, given)}
        (wanted,) = by_runtime(proto, feeds)
        np.testing.assert_allclose(compiled.run(feeds)["y"], wanted, rtol=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("given", "message"),
    [(4, "sizes do not fit together"), (0, "expected a size of at least 1 on axis 2")],
)
def test_a_mask_that_is_too_short_is_refused(given: int, message: str) -> None:
    compiled = tvm_ext.compile(masked(), HOST)
    feeds = {"past": rand(2, 4, 3), "new": rand(2, 4, 2), "mask": rand(2, 1, given)}
    with pytest.raises(TvmExtError, match=message):
        compiled.run(feeds)


def exported_with_one_example(extra: list) -> onnx.ModelProto:
    """A batch that is called dynamic, and 1 in what the exporter wrote of shapes."""
    nodes = [
        node("Reshape", ["x", "one_batch"], ["all"]),
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["length"]),
        node("Slice", ["table", "zero", "length", "zero"], ["positions"]),
        node("Add", ["all", "positions"], ["placed"]),
        node("Concat", ["one", "length", "four"], ["target"], axis=0),
        node("Reshape", ["placed", "target"], ["rows"]),
        *extra,
    ]
    return model(
        nodes,
        [value("x", ["N", "L", 4])],
        [value("y", [None, None, 4])],
        table=rand(12, 4),
        one_batch=np.array([1, -1, 4]),
        zero=np.array([0]),
        one=np.array([1]),
        four=np.array([4]),
    )


def test_a_batch_that_a_reshape_takes_for_one_is_one() -> None:
    proto = exported_with_one_example([node("Relu", ["rows"], ["y"])])
    compiled = tvm_ext.compile(proto, HOST)
    assert kernels_of_sizes(compiled) == []
    assert compiled.inputs[0].describe() == "x: float32[1, 'L' (0:12), 4]"
    for length in (1, 7, 0):
        feeds = {"x": rand(1, length, 4)}
        (wanted,) = by_runtime(proto, feeds)
        np.testing.assert_allclose(compiled.run(feeds)["y"], wanted, rtol=1e-6)
    with pytest.raises(InputError, match="expected size 1 on axis 0"):
        compiled.run({"x": rand(2, 3, 4)})


@pytest.mark.extended
def test_a_batch_that_only_a_branch_takes_for_one_may_be_more() -> None:
    """No run need take it."""
    inner = exported_with_one_example([node("Relu", ["rows"], ["then_y"])])
    then = onnx.helper.make_graph(
        list(inner.graph.node), "then", [], [value("then_y", None)], list(inner.graph.initializer)
    )
    other = onnx.helper.make_graph(
        [node("Neg", ["x"], ["else_y"])], "else", [], [value("else_y", None)]
    )
    choice = node("If", ["flag"], ["y"], then_branch=then, else_branch=other)
    flag = value("flag", [], onnx.TensorProto.BOOL)
    proto = model([choice], [value("x", ["N", "L", 4]), flag], [value("y", None)])
    compiled = tvm_ext.compile(proto, HOST)
    feeds = {"x": rand(2, 3, 4), "flag": np.array(False)}
    np.testing.assert_array_equal(compiled.run(feeds)["y"], -feeds["x"])
