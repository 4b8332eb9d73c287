"""Cast of floating point to integers."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from operator_models import array_info, run_at_levels
from small_models import model, node
from thoroughness import one_in

from tvm_ext.onnx_frontend import import_model

NAN, INF = float("nan"), float("inf")

FLOATS = np.array([-129.9, -128, -1.5, -0.5, 0, 0.5, 1.5, 127, 255.9, 300], np.float32)


@pytest.mark.parametrize("wanted", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
@pytest.mark.parametrize(
    "given", one_in(3, ["float32", "float16", "float64"], pytest.mark.extended)
)
def test_cast_of_floats_truncates_and_narrow_integers_wrap_around(given: str, wanted: str) -> None:
    x = FLOATS.astype(given)
    to = helper.np_dtype_to_tensor_dtype(np.dtype(wanted))
    proto = model(
        [node("Cast", ["x"], ["y"], to=to)],
        [array_info("x", [10], given)],
        [array_info("y", [10], wanted)],
    )
    for outputs in run_at_levels(proto, x=x):
        assert outputs["y"].dtype == wanted
        np.testing.assert_array_equal(outputs["y"], np.trunc(x).astype("int64").astype(wanted))


def test_cast_to_integers_is_one_operator() -> None:
    proto = model(
        [node("Cast", ["x"], ["y"], to=TensorProto.INT32)],
        [array_info("x", [4])],
        [array_info("y", [4], np.int32)],
    )
    script = import_model(proto).mod.script()
    assert script.count("R.astype") == 1
    assert "where" not in script


def test_cast_of_what_is_no_number_ends_well() -> None:
    proto = model(
        [node("Cast", ["x"], ["i"], to=TensorProto.INT64), node("Gather", ["data", "i"], ["y"])],
        [array_info("x", [4])],
        [array_info("y", [4])],
        data=np.ones(3, np.float32),
    )
    for outputs in run_at_levels(proto, x=np.array([NAN, INF, -INF, 1e30], np.float32)):
        np.testing.assert_array_equal(outputs["y"], np.ones(4, np.float32))
