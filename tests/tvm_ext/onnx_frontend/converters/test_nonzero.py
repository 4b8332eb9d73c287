"""NonZero and comparisons that are negated, NaN among the elements, against ONNX Runtime."""

import numpy as np
import pytest
from combinations import pairwise
from one_model import in_one_model, run_model
from onnx import TensorProto, helper
from operator_models import by_runtime
from small_models import model, node, value
from unoptimised import HOST

import tvm_ext

COMPARISONS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")


@pytest.mark.extended
@pairwise(
    dtype=["float32", "bool", "int64", "float16"],
    sizes=[[], ["N"], ["A", "B"], ["A", 3, "C"]],
)
def test_places_of_any_number_of_elements(dtype: str, sizes: list) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    found = value("y", [None, None], TensorProto.INT64)
    proto = model([node("NonZero", ["x"], ["y"])], [value("x", sizes, kind)], [found])
    compiled = tvm_ext.compile(proto, HOST)
    for length in (0, 1, 5, 40):
        shape = [length if isinstance(size, str) else size for size in sizes]
        x = np.array(np.random.default_rng(length).integers(0, 2, shape)).astype(dtype)
        if x.size > 1 and x.dtype.kind == "f":
            x.flat[:2] = np.nan, -0.0
        # ONNX Runtime has no NonZero of float16, which has the zeros of float32.
        wanted = np.stack(np.atleast_1d(x).nonzero())
        result = compiled.run({"x": x})["y"]
        np.testing.assert_array_equal(result, wanted)
        assert result.dtype == np.int64


def test_it_needs_no_python() -> None:
    found = value("y", [2, None], TensorProto.INT64)
    proto = model([node("NonZero", ["x"], ["y"])], [value("x", [3, 4])], [found])
    names = {call.kernel for call in tvm_ext.compile(proto, HOST).kernel_calls()}
    assert any("places_of_nonzero" in name for name in names)


@in_one_model
@pytest.mark.parametrize("operator", COMPARISONS)
def test_a_negated_comparison_holds_for_nan(operator: str) -> None:
    nodes = [
        node(operator, ["x", "z"], ["flags"]),
        node("Not", ["flags"], ["others"]),
        node("Where", ["others", "x", "z"], ["chosen"]),
        node("Cast", ["x"], ["true"], to=TensorProto.BOOL),
    ]
    outputs = [value("others", None, TensorProto.BOOL), value("chosen", None)]
    outputs.append(value("true", None, TensorProto.BOOL))
    x = np.array([0, 1, np.nan, np.nan, np.inf, 2, -1], np.float32)
    z = np.array([0, 2, np.nan, 1, np.inf, np.nan, -3], np.float32)
    proto = model(nodes, [value("x", [7]), value("z", [7])], outputs)
    result = run_model(proto, {"x": x, "z": z})
    for name, wanted in zip(result, by_runtime(proto, {"x": x, "z": z}), strict=True):
        np.testing.assert_array_equal(result[name], wanted)
    assert result["others"][2]
