"""Numbers that follow from sizes: folded, as expressions, or computed in the run."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from one_model import in_one_model, program
from operator_models import by_runtime
from small_models import model, node, rand, value
from tvm import relax, tirx

from tvm_ext.onnx_frontend import import_model
from tvm_ext.onnx_frontend.sizes import SizeValues, scalar_rules
from tvm_ext.onnx_frontend.sizes.size_values import array_of
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.spans import all_bindings_of

INT64, INT32, F = onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.FLOAT
N = tirx.Var("n", "int64")


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


STORED = {
    **{f"c{n}": np.array(n, np.int64) for n in (0, 1, 2, 3, 4, 100)},
    **{f"l{n}": ints(n) for n in (0, 1, 2, 3, -1)},
    "far": ints(2**63 - 1),
    "half": np.array(0.5, np.float32),
}


def sized(
    nodes: Sequence[onnx.NodeProto],
    sizes: Sequence[Any] = ("N", 3, 5, 7),
    outputs: Sequence[str] = ("y",),
) -> onnx.ModelProto:
    """A model that reads ``x`` of these sizes, two numbers of the run, and sizes of ``x``."""
    first = [node("Shape", ["x"], ["s"])]
    first += [node("Gather", ["s", f"c{axis}"], [f"d{axis}"]) for axis in range(4)]
    inputs = [value("x", list(sizes)), value("k", [2], INT64)]
    outs = [onnx.ValueInfoProto(name=name) for name in outputs]
    return model([*first, *nodes], inputs, outs, opset=18, **STORED)


def assert_as_runtime(proto: onnx.ModelProto, level: str = "O0") -> None:
    compiled = program(proto, level)
    for batch in (2, 5):
        feeds = {"x": rand(batch, 3, 5, 7), "k": ints(batch + 1, 3)}
        wanted = by_runtime(proto, feeds)
        for got, want in zip(compiled.run(feeds).values(), wanted, strict=True):
            assert got.shape == want.shape
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-6)


def operators(proto: onnx.ModelProto) -> set[str]:
    bindings = all_bindings_of(import_model(proto).mod["main"])
    return {operator_name(b.value) for b in bindings if isinstance(b.value, relax.Call)}


# A known size among symbolic ones -------------------------------------------------------------

FOLDED = {
    "Range": [node("Range", ["c0", "d2", "c1"], ["y"])],
    "Mod": [node("Mod", ["d2", "c3"], ["y"])],
    "Cast": [node("Cast", ["d2"], ["y"], to=INT32)],
    "Div": [node("Add", ["d2", "c2"], ["a"]), node("Div", ["a", "c3"], ["y"])],
    "Sqrt": [
        node("Cast", ["d2"], ["a"], to=F),
        node("Sqrt", ["a"], ["b"]),
        node("Floor", ["b"], ["y"]),
    ],
    "NonZero": [
        node("Unsqueeze", ["d2", "l0"], ["a"]),
        node("ConstantOfShape", ["a"], ["b"], value=onnx.numpy_helper.from_array(ints(1))),
        node("NonZero", ["b"], ["y"]),
    ],
}


@in_one_model
@pytest.mark.parametrize("name", FOLDED)
def test_known_sizes_beside_symbolic_ones_are_folded(name: str) -> None:
    proto = sized(FOLDED[name])
    assert operators(proto) == set(), "constants alone"
    assert_as_runtime(proto)


SCALES = {
    "power": [node("Pow", ["f", "minus"], ["scale"]), node("Mul", ["x", "scale"], ["y"])],
    "root": [node("Sqrt", ["f"], ["root"]), node("Div", ["x", "root"], ["y"])],
    "reciprocal": [
        node("Sqrt", ["f"], ["root"]),
        node("Reciprocal", ["root"], ["scale"]),
        node("Mul", ["x", "scale"], ["y"]),
    ],
    "root of the reciprocal root": [
        node("Sqrt", ["f"], ["root"]),
        node("Div", ["one", "root"], ["inner"]),
        node("Sqrt", ["inner"], ["scale"]),
        node("Mul", ["x", "scale"], ["y"]),
    ],
}


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("last", [7, "D"])
@pytest.mark.parametrize("name", SCALES)
def test_scales_of_attention_from_the_size_of_a_head(name: str, last: int | str) -> None:
    powers = {"minus": np.array(-0.5, np.float32), "one": np.array(1, np.float32)}
    proto = sized([node("Cast", ["d3"], ["f"], to=F), *SCALES[name]], ("N", 3, 5, last))
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, key) for key, array in powers.items()
    )
    assert_as_runtime(proto)


def test_the_end_of_a_slice_may_be_a_known_size() -> None:
    nodes = [
        node("Add", ["d2", "c2"], ["a"]),
        node("Div", ["a", "c3"], ["b"]),
        node("Unsqueeze", ["b", "l0"], ["end"]),
        node("Slice", ["x", "l0", "end", "l2"], ["y"]),
    ]
    proto = sized(nodes)
    (result,) = import_model(proto).mod["main"].ret_ty.shape.values[2:3]
    assert int(result) == 2
    assert_as_runtime(proto)


# Expressions -----------------------------------------------------------------------------------


@pytest.mark.extended
def test_windows_of_a_dynamic_batch() -> None:
    """Padding to whole windows and their partition, as Swin transformers are exported."""
    nodes = [
        *[node("Mod", [f"d{axis}", "c4"], [f"m{axis}"]) for axis in (2, 3)],
        *[node("Sub", ["c4", f"m{axis}"], [f"r{axis}"]) for axis in (2, 3)],
        *[node("Mod", [f"r{axis}", "c4"], [f"p{axis}"]) for axis in (2, 3)],
        *[node("Unsqueeze", [f"p{axis}", "l0"], [f"u{axis}"]) for axis in (2, 3)],
        node("Concat", ["l0", "l0", "l0", "l0", "l0", "l0", "u2", "u3"], ["pads"], axis=0),
        node("Pad", ["x", "pads"], ["padded"]),
        node("Shape", ["padded"], ["t"]),
        *[node("Gather", ["t", f"c{axis}"], [f"e{axis}"]) for axis in range(4)],
        *[node("Div", [f"e{axis}", "c4"], [f"w{axis}"]) for axis in (2, 3)],
        *[
            node("Unsqueeze", [name, "l0"], [f"l_{name}"])
            for name in ("e0", "e1", "w2", "c4", "w3")
        ],
        node("Concat", ["l_e0", "l_e1", "l_w2", "l_c4", "l_w3", "l_c4"], ["target"], axis=0),
        node("Reshape", ["padded", "target"], ["y"]),
    ]
    for sizes in (("N", 3, 5, 7), ("N", "C", "H", "W")):
        assert_as_runtime(sized(nodes, sizes))


@pytest.mark.parametrize("level", ["O0", "O3"])
def test_an_expand_whose_sizes_may_be_minus_one(level: str) -> None:
    """``x.expand(n, -1)`` as the older exporter of PyTorch writes it."""
    nodes = [
        node("Unsqueeze", ["d0", "l0"], ["n"]),
        node("Concat", ["n", "l1", "l2"], ["sizes"], axis=0),
        node("ConstantOfShape", ["l3"], ["zeros"], value=onnx.numpy_helper.from_array(ints(1))),
        node("Mul", ["zeros", "l-1"], ["minus"]),
        node("Equal", ["sizes", "minus"], ["same"]),
        node("Where", ["same", "zeros", "sizes"], ["target"]),
        node("Expand", ["half", "target"], ["y"]),
    ]
    assert_as_runtime(sized(nodes), level)


CHAINS = {
    "whole numbers": ["Add d0 c2", "Div v c3", "Mul v c3", "Sub v d0", "Neg v", "Abs v"],
    "minimum and maximum": ["Max d0 c3 d2", "Min v c4", "Mod v c3"],
    "a choice": ["Greater d0 c3", "Where v d0 c100", "Add v c1"],
    "negative dividends": ["Sub c1 d0", "Div v c2", "Mod v c3"],
    "beside a number of the run": ["Gather k c0", "Mul v d0", "Max v d2"],
}


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("name", CHAINS)
def test_chains_give_the_integers_of_the_run(name: str) -> None:
    nodes, last = [], ""
    for place, step in enumerate(CHAINS[name]):
        operator, *inputs = step.split()
        given = [last if name == "v" else name for name in inputs]
        last = f"v{place}"
        nodes.append(node(operator, given, [last]))
    nodes.append(node("Range", ["c0", last, "c1"], ["y"]))
    assert_as_runtime(sized(nodes, outputs=["y", last]))


def test_a_list_of_known_symbolic_and_unknown_sizes() -> None:
    nodes = [
        node("Slice", ["k", "l1", "far", "l0"], ["run"]),
        node("Concat", ["s", "run"], ["all"], axis=0),
        node("Slice", ["all", "l1", "far", "l0"], ["some"]),
        node("Slice", ["some", "l0", "l3", "l0"], ["known"]),
        node("Concat", ["l-1", "run", "l1"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
        node("ReduceProd", ["known"], ["z"], keepdims=0),
    ]
    assert_as_runtime(sized(nodes, outputs=["y", "z", "some"]))


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(
    ("operator", "inputs"), [("Tile", ["x", "t"]), ("Resize", ["x", "", "", "r"])]
)
def test_consumers_of_symbolic_and_unknown_sizes(operator: str, inputs: list[str]) -> None:
    nodes = [
        node("Slice", ["k", "l1", "far", "l0"], ["run"]),
        node("Concat", ["l1", "run", "l1", "l2"], ["t"], axis=0),
        node("Slice", ["s", "l0", "l2", "l0"], ["front"]),
        node("Unsqueeze", ["d0", "l0"], ["n"]),
        node("Concat", ["front", "run", "n"], ["r"], axis=0),
        node(operator, inputs, ["y"]),
    ]
    assert_as_runtime(sized(nodes))


# Rules -----------------------------------------------------------------------------------------

NUMBERS = (-7, -3, -1, 0, 1, 2, 5)


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_rules_of_numbers_are_those_of_the_operators(dtype: str) -> None:
    for a in NUMBERS:
        for b in NUMBERS:
            assert scalar_rules.multiply(a, b, dtype) == a * b
            if not b:
                assert scalar_rules.divide(a, b, dtype) is None
                continue
            assert scalar_rules.divide(a, b, dtype) == int(a / b)
            assert scalar_rules.remainder(a, b, dtype, like_dividend=False) == a % b
            assert scalar_rules.remainder(a, b, dtype, like_dividend=True) == np.fmod(a, b)


def test_narrow_integers_wrap_around() -> None:
    assert scalar_rules.add(2**31 - 1, 1, "int32") == -(2**31)
    assert scalar_rules.converted(300, "int64", "uint8") == 44
    square = scalar_rules.multiply(N, N, "int32")
    assert "int32" in str(square), "only the run knows whether it fits"
    assert str(scalar_rules.add(N, 1, "int32")) == str(N + 1), "sizes are far below"


def test_floats_round() -> None:
    large = 2**24 + 1
    as_float = scalar_rules.converted(large, "int64", "float32")
    assert scalar_rules.converted(as_float, "float32", "int64") == 2**24
    there = scalar_rules.converted(N, "int64", "float64")
    assert scalar_rules.converted(there, "float64", "int64").same_as(N)
    rounded = scalar_rules.converted(N, "int64", "float32")
    assert not scalar_rules.converted(rounded, "float32", "int64").same_as(N)


def test_what_holds_for_every_size_is_decided() -> None:
    assert scalar_rules.comparison(scalar_rules.operator.eq)(N, -1, "int64") is False
    assert scalar_rules.comparison(scalar_rules.operator.ge)(N, 0, "int64") is True
    open_ = scalar_rules.comparison(scalar_rules.operator.eq)(N, 1, "int64")
    assert scalar_rules.is_expression(open_)
    assert scalar_rules.both(open_, False, "bool") is False
    assert scalar_rules.either(None, True, "bool") is True


def test_values_say_what_is_known() -> None:
    mixed = SizeValues.of("int64", array_of([1, N, None], (3,)))
    assert (mixed.is_known, mixed.unknown) == (False, 1)
    known = SizeValues.of("int32", array_of([1, 2], (2,)))
    assert known.is_known
    assert known.elements.dtype == np.int32


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatters_of_symbolic_sizes(reduction: str) -> None:
    """Slices that are assigned, whose number the sizes of two inputs tell."""
    nodes = [
        node("Range", ["c0", "d0", "c1"], ["rows"]),
        node("Unsqueeze", ["rows", "l-1"], ["at"]),
        node("Slice", ["x", "l0", "n", "l0"], ["updates"]),
        node("ScatterND", ["x", "at", "updates"], ["y"], reduction=reduction),
        node("Slice", ["x", "l0", "l1", "l0"], ["first"]),
        node("Shape", ["first"], ["sf"]),
        node("Expand", ["l1", "sf"], ["places"]),
        node("ScatterElements", ["x", "places", "first"], ["z"], axis=3, reduction=reduction),
    ]
    last = [node("Unsqueeze", ["d0", "l0"], ["n"])]
    assert_as_runtime(sized([*last, *nodes], outputs=["y", "z"]))


def test_a_slice_that_is_empty_beside_symbolic_sizes() -> None:
    nodes = [node("Mod", ["d2", "c1"], ["v"]), node("Unsqueeze", ["v", "l0"], ["end"])]
    nodes += [node("Slice", ["x", "l0", "end", "l2"], ["y"])]
    assert_as_runtime(sized(nodes, ("N", "C", "H", "W")))
