"""Tensors that follow from places and sizes: one expression until something reads them."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from operator_models import by_runtime
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.onnx_frontend import import_model
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.spans import all_bindings_of

BOOL, F, INT32, INT64 = TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
SIZES = ((2, 3), (1, 1), (3, 1), (1, 6))
STORED = {
    "zero": np.array(0, "int64"),
    "one": np.array(1, "int64"),
    "two": np.array(2, "int64"),
    "minus": np.array(-1, "int64"),
    "least": np.array(-3e38, "float32"),
    "none": np.array(0, "float32"),
    **{f"l{n}": np.array([n], "int64") for n in (0, 1, 2, 3, -1)},
    "column": np.array([-1, 1], "int64"),
    "row": np.array([1, -1], "int64"),
    "cut": np.array([-1], "int64"),
}
# ``n`` and ``t``, the sizes of ``x``, and what counts along them.
COUNTED = [
    node("Shape", ["x"], ["s"]),
    node("Gather", ["s", "zero"], ["n"]),
    node("Gather", ["s", "one"], ["t"]),
    node("Range", ["zero", "n", "one"], ["rows"]),
    node("Range", ["zero", "t", "one"], ["columns"]),
    node("Unsqueeze", ["rows", "l1"], ["i"]),
    node("Unsqueeze", ["columns", "l0"], ["j"]),
]
# The coordinates of every element of ``x``, as ScatterND and GatherND take them.
GRID = [
    node("Expand", ["i", "s"], ["every_i"]),
    node("Expand", ["j", "s"], ["every_j"]),
    node("Unsqueeze", ["every_i", "l2"], ["first"]),
    node("Unsqueeze", ["every_j", "l2"], ["second"]),
    node("Concat", ["first", "second"], ["grid"], axis=-1),
]


def made(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str] = ("y",), extra: Sequence = ()
) -> onnx.ModelProto:
    """A model of ``x``, float32['N', 'T'], whose nodes come after those that count along it."""
    outs = [onnx.ValueInfoProto(name=name) for name in outputs]
    inputs = [value("x", ["N", "T"]), *extra]
    return model([*COUNTED, *nodes], inputs, outs, opset=18, **STORED)


def kernels(proto: onnx.ModelProto) -> int:
    bindings = all_bindings_of(import_model(proto).mod["main"])
    return sum(operator_name(binding.value) != "" for binding in bindings)


def assert_as_runtime(proto: onnx.ModelProto, level: str = "O0", **more: np.ndarray) -> None:
    compiled = tvm_ext.compile(proto, HOST, opt_level=level)
    for sizes in SIZES:
        feeds = {"x": rand(*sizes), **more}
        wanted = by_runtime(proto, feeds)
        for got, want in zip(compiled.run(feeds).values(), wanted, strict=True):
            assert got.shape == want.shape
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)


# By name: nodes that make ``y`` of what counts along the axes.
OPERATORS = {
    "arithmetic": [
        node("Mul", ["i", "t"], ["a"]),
        node("Add", ["a", "j"], ["b"]),
        node("Mod", ["b", "two"], ["c"]),
        node("Sub", ["c", "j"], ["d"]),
        node("Max", ["d", "minus"], ["y"]),
    ],
    "comparisons": [
        node("LessOrEqual", ["j", "i"], ["a"]),
        node("Equal", ["j", "two"], ["b"]),
        node("Not", ["b"], ["c"]),
        node("And", ["a", "c"], ["d"]),
        node("Or", ["d", "b"], ["y"]),
    ],
    "a choice": [
        node("Greater", ["j", "i"], ["a"]),
        node("Where", ["a", "least", "none"], ["y"]),
    ],
    "casts": [
        node("Sub", ["i", "j"], ["a"]),
        node("Cast", ["a"], ["b"], to=F),
        node("Mul", ["b", "least"], ["c"]),
        node("Cast", ["a"], ["d"], to=BOOL),
        node("Cast", ["d"], ["e"], to=F),
        node("Add", ["c", "e"], ["y"]),
    ],
    "triangles": [
        node("ConstantOfShape", ["s"], ["a"], value=numpy_helper.from_array(np.ones(1, "int64"))),
        node("Trilu", ["a", "one"], ["b"], upper=1),
        node("Trilu", ["a", "minus"], ["c"], upper=0),
        node("Sub", ["b", "c"], ["y"]),
    ],
    "a triangle of conditions": [
        node("GreaterOrEqual", ["i", "j"], ["a"]),
        node("Trilu", ["a"], ["y"]),
    ],
    "moved axes": [
        node("Sub", ["i", "j"], ["a"]),
        node("Transpose", ["a"], ["b"], perm=[1, 0]),
        node("Unsqueeze", ["b", "l0"], ["c"]),
        node("Squeeze", ["c", "l0"], ["y"]),
    ],
    "reshapes": [
        node("Reshape", ["columns", "column"], ["a"]),
        node("Reshape", ["a", "row"], ["b"], allowzero=1),
        node("Add", ["a", "b"], ["y"]),
    ],
    "slices": [
        node("Slice", ["columns", "l1", "l3", "l0"], ["a"]),
        node("Slice", ["columns", "l0", "cut", "l0", "l1"], ["b"]),
        node("Concat", ["a", "b", "columns"], ["y"], axis=0),
    ],
    "tiles": [
        node("Concat", ["l3", "l1"], ["counts"], axis=0),
        node("Tile", ["j", "counts"], ["y"]),
    ],
    "backwards": [
        node("Sub", ["t", "one"], ["last"]),
        node("Range", ["last", "minus", "minus"], ["a"]),
        node("Add", ["a", "i"], ["y"]),
    ],
    "int32": [
        node("Cast", ["n"], ["m"], to=INT32),
        node("Cast", ["zero"], ["start"], to=INT32),
        node("Cast", ["two"], ["step"], to=INT32),
        node("Range", ["start", "m", "step"], ["a"]),
        node("Mul", ["a", "a"], ["y"]),
    ],
    "more operators than one expression holds": [
        node("Add", ["i", "j"], ["a0"]),
        *(node("Add", [f"a{n}", f"a{n}"], [f"a{n + 1}"]) for n in range(8)),
        node("Mod", ["a8", "l3"], ["y"]),
    ],
}


@pytest.mark.extended
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_on_places_gives_what_the_runtime_gives(name: str) -> None:
    assert_as_runtime(made(OPERATORS[name]))


def test_a_choice_of_conditions() -> None:
    """ONNX Runtime has none."""
    nodes = [
        node("Greater", ["j", "i"], ["a"]),
        node("Equal", ["j", "two"], ["b"]),
        node("Where", ["a", "b", "a"], ["y"]),
    ]
    compiled = tvm_ext.compile(made(nodes), HOST, opt_level="O0")
    for rows, length in SIZES:
        i, j = np.arange(rows)[:, None], np.arange(length)[None]
        found = compiled.run({"x": rand(rows, length)})["y"]
        np.testing.assert_array_equal(found, np.where(j > i, j == 2, j > i))


WHOLE = ["arithmetic", "comparisons", "a choice", "casts", "triangles", "moved axes", "reshapes"]


@pytest.mark.parametrize("name", WHOLE)
def test_a_tensor_of_places_is_one_kernel(name: str) -> None:
    assert kernels(made(OPERATORS[name])) == 1


def test_a_causal_mask_with_padding_is_one_kernel() -> None:
    """As exporters of language models write it, the padding read by an index for each element."""
    nodes = [
        *GRID,
        node("Cast", ["mask"], ["flags"], to=BOOL),
        node("GatherND", ["flags", "grid"], ["padding"]),
        node("Unsqueeze", ["padding", "l1"], ["key"]),
        node("Reshape", ["columns", "column"], ["query"]),
        node("LessOrEqual", ["j", "query"], ["causal"]),
        node("And", ["key", "causal"], ["both"]),
        node("Where", ["both", "none", "least"], ["y"]),
    ]
    proto = made(nodes, extra=[value("mask", ["N", "M"], INT64)])
    compiled = tvm_ext.compile(proto, HOST)
    assert len(compiled.kernel_calls()) == 1
    for rows, length in SIZES:
        mask = (rand(rows, length + 2) > 0).astype("int64")
        feeds = {"x": rand(rows, length), "mask": mask}
        np.testing.assert_array_equal(compiled.run(feeds)["y"], by_runtime(proto, feeds)[0])
    # ONNX Runtime refuses an index beyond the data; here it reads the nearest element.
    short = {"x": rand(1, 3), "mask": np.ones((1, 2), "int64")}
    assert compiled.run(short)["y"].shape == (1, 3, 3)


def test_indices_of_all_elements_write_what_is_written() -> None:
    """``x[:, :] = w``."""
    proto = made([*GRID, node("Neg", ["x"], ["w"]), node("ScatterND", ["x", "grid", "w"], ["y"])])
    assert kernels(proto) == 1
    assert_as_runtime(proto)


def test_indices_of_the_first_elements_write_a_choice() -> None:
    """``z[:n, :t] = x`` in a larger tensor."""
    nodes = [
        node("Concat", ["l0", "l0", "l1", "l2"], ["ends"], axis=0),
        node("Pad", ["x", "ends"], ["z"]),
        *GRID,
        node("ScatterND", ["z", "grid", "x"], ["y"]),
    ]
    proto = made(nodes)
    assert "scatter" not in str(import_model(proto).mod)
    assert_as_runtime(proto)


REFUSED = {
    "another order": [
        node("Concat", ["second", "first"], ["turned"], axis=-1),
        node("ScatterND", ["square", "turned", "w"], ["y"]),
    ],
    "every second": [
        node("Mul", ["grid", "minus"], ["other"]),
        node("ScatterND", ["square", "other", "w"], ["y"]),
    ],
    "a sum": [node("ScatterND", ["square", "grid", "w"], ["y"], reduction="add")],
}


@pytest.mark.extended
@pytest.mark.parametrize("name", REFUSED)
def test_other_indices_are_scattered(name: str) -> None:
    nodes = [
        *GRID,
        node("Neg", ["x"], ["w"]),
        node("Add", ["n", "t"], ["m"]),
        node("Unsqueeze", ["m", "l0"], ["side"]),
        node("Concat", ["side", "side"], ["sides"], axis=0),
        node("ConstantOfShape", ["sides"], ["square"]),
        *REFUSED[name],
    ]
    proto = made(nodes)
    assert "scatter" in str(import_model(proto).mod)
    assert_as_runtime(proto)


def test_rows_of_a_table_are_read_at_positions() -> None:
    """``table[past:past + length]``, and by an index into a flat mask."""
    nodes = [
        node("Add", ["columns", "n"], ["positions"]),
        node("Gather", ["table", "positions"], ["embedded"]),
        node("ReduceSum", ["embedded", "l1"], ["a"], keepdims=0),
        node("Mul", ["i", "t"], ["starts"]),
        node("Add", ["starts", "j"], ["places"]),
        node("Reshape", ["x", "cut"], ["flat"]),
        node("Gather", ["flat", "places"], ["b"]),
        node("Sub", ["places", "l1"], ["before"]),
        node("Gather", ["flat", "before"], ["c"]),
        node("Add", ["b", "c"], ["d"]),
        node("Add", ["d", "a"], ["y"]),
    ]
    proto = made(nodes, extra=[value("table", [12, 4])])
    table = np.arange(48, dtype="float32").reshape(12, 4)
    assert_as_runtime(proto, level="O3", table=table)


@pytest.mark.extended
def test_a_branch_reads_places_from_outside() -> None:
    sides = {
        f"{side}_branch": helper.make_graph([made_of], side, [], [value("e", None, INT64)])
        for side, made_of in (
            ("then", node("Add", ["i", "j"], ["e"])),
            ("else", node("Expand", ["i", "s"], ["e"])),
        )
    }
    proto = made([node("If", ["c"], ["y"], **sides)], extra=[value("c", [], BOOL)])
    for chosen in (True, False):
        assert_as_runtime(proto, c=np.array(chosen))


def test_places_are_results() -> None:
    assert_as_runtime(made([node("Add", ["i", "j"], ["y"])], outputs=["y", "rows", "i"]))
