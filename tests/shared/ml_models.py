"""One operator of ai.onnx.ml as a model, compared with ONNX Runtime or refused."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from one_model import run_model
from onnx import helper

import tvm_ext
from tvm_ext.errors import ModelError

ML = "ai.onnx.ml"


def ml_model(
    operator: str, x: list[np.ndarray], outputs: list, version: int = 3, **attributes: Any
) -> onnx.ModelProto:
    names = [f"x{place}" for place in range(len(x))]
    given_names = [f"y{place}" for place in range(len(outputs))]
    node = helper.make_node(
        operator, names, given_names, name="node", domain=ML,
        **{name: value for name, value in attributes.items() if value is not None},
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "small",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in zip(names, x, strict=True)
        ],
        [
            helper.make_tensor_value_info(name, dtype, None)
            for name, dtype in zip(given_names, outputs, strict=True)
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def check(proto: onnx.ModelProto, *x: np.ndarray, rtol: float = 1e-5) -> None:
    feed = {f"x{place}": array for place, array in enumerate(x)}
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    found = run_model(proto, feed)
    for name, wanted in zip(found, session.run(None, feed), strict=True):
        assert found[name].dtype == wanted.dtype, name
        assert found[name].shape == wanted.shape, name
        np.testing.assert_allclose(found[name], wanted, rtol=rtol, atol=rtol, err_msg=name)


def refused(proto: onnx.ModelProto, line: str) -> None:
    with pytest.raises(ModelError, match=line):
        tvm_ext.compile(proto)
