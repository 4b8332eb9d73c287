"""Range: lengths that follow from sizes, in both directions, and what TVM's converter keeps."""

import numpy as np
import onnx
import pytest
from one_model import in_one_model, program, run_model
from operator_models import by_runtime
from small_models import model, node, rand, value

from tvm_ext.onnx_frontend import import_model

F, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def counted(start: float, delta: float, dtype: int) -> onnx.ModelProto:
    """Numbers from ``start`` to the length of the input, or from the length to ``start``."""
    kind = np.float32 if dtype == F else np.int64
    first, second = ("start", "size") if delta > 0 else ("size", "start")
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Cast", ["n"], ["size"], to=dtype),
        node("Range", [first, second, "delta"], ["y"]),
    ]
    weights = {
        "zero": np.array(0, np.int64),
        "start": np.array(start, kind),
        "delta": np.array(delta, kind),
    }
    return model(nodes, [value("x", ["n"])], [value("y", ["m"], dtype)], **weights)


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize("dtype", [F, INT64])
@pytest.mark.parametrize(("start", "delta"), [(0, 1), (0, 3), (2, 2), (-3, 4), (0, -1), (5, -2)])
def test_length_from_a_size(start: int, delta: int, dtype: int) -> None:
    proto = counted(start, delta, dtype)
    compiled = program(proto)
    for length in (1, 5, 6, 17):
        feeds = {"x": rand(length)}
        wanted = by_runtime(proto, feeds)[0]
        got = compiled.run(feeds)["y"]
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


def test_a_count_of_positions_has_the_size_that_it_counts() -> None:
    assert import_model(counted(0, 1, F)).outputs[0].shape == ("n",)


def test_a_step_that_is_no_whole_number() -> None:
    proto = counted(0.5, 0.25, F)
    feeds = {"x": rand(3)}
    np.testing.assert_array_equal(run_model(proto, feeds)["y"], by_runtime(proto, feeds)[0])
