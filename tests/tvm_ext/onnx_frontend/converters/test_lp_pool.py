"""LpPool: windows that hang over, and such as are longer than the image."""

import numpy as np
import onnx
import pytest
from one_model import in_one_model, run_model
from onnx import TensorProto, helper
from small_models import rand
from thoroughness import ALL_CASES

from tvm_ext.check.reference import run_reference

# Sizes of the image, window, strides, further attributes.
CASES = [
    ([4, 9], [5, 3], [2, 2], {}),
    ([3, 9], [5, 3], [3, 2], {}),
    ([4, 9], [5, 3], [2, 2], {"ceil_mode": 1}),
    ([7, 8], [3, 3], [2, 2], {"ceil_mode": 1, "pads": [1, 0, 1, 0]}),
    ([7, 8], [2, 3], [3, 2], {"ceil_mode": 1, "dilations": [2, 1], "p": 3}),
    ([6], [5], [4], {"ceil_mode": 1, "p": 1}),
]
# An image that is shorter than the window has to be of known size.
SYMBOLIC = [case for case in CASES if "ceil_mode" in case[3]]
# Each set of attributes with sizes of either kind, one of each with both.
KNOWN_ONLY, SYMBOLIC_ONLY = ([CASES[3]], [CASES[2], CASES[4]]) if not ALL_CASES else ([], [])


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize(
    ("case", "is_symbolic"),
    [(c, False) for c in CASES if c not in SYMBOLIC_ONLY]
    + [(c, True) for c in SYMBOLIC if c not in KNOWN_ONLY],
)
def test_norms_of_windows_are_onnx_runtimes(case, is_symbolic: bool) -> None:
    sizes, kernel, strides, attributes = case
    names = ["h", "w"][: len(sizes)] if is_symbolic else sizes
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, *names])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node(
        "LpPool", ["x"], ["y"], kernel_shape=kernel, strides=strides, **attributes
    )
    graph = helper.make_graph([node], "pool", [x], [y])
    opsets = [helper.make_opsetid("", 18)]
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
    feeds = {"x": rand(1, 2, *sizes)}
    found = run_model(proto, feeds)["y"]
    np.testing.assert_allclose(found, run_reference(proto, feeds)["y"], rtol=1e-5)
