"""One ONNX operator as a model, run with stored and with run-time inputs, against a reference."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from one_model import run_model
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from opt_levels import levels_of

from tvm_ext.onnx_frontend import import_model

Arrays = Mapping[str, "np.ndarray | None"]
Reference = Callable[[onnx.ModelProto, dict[str, np.ndarray]], list[np.ndarray]]


def operator_model(
    operator: str,
    arrays: Arrays,
    outputs: int = 1,
    stored: Iterable[str] = (),
    opset: int = 20,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model and what it is fed; an input whose array is None is left out.

    ``domain`` among the attributes is the operator's, in its first version.
    """
    names = [name if array is not None else "" for name, array in arrays.items()]
    given = {name: array for name, array in arrays.items() if array is not None}
    weights = [numpy_helper.from_array(given[name], name) for name in stored]
    feeds = {name: array for name, array in given.items() if name not in set(stored)}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    results = [f"y{place}" for place in range(outputs)]
    node = helper.make_node(operator, names, results, name="tested", **attributes)
    infos = [onnx.ValueInfoProto(name=name) for name in results]
    graph = helper.make_graph([node], "small", inputs, infos, weights)
    opsets = [helper.make_opsetid("", opset)]
    if "domain" in attributes:
        opsets.append(helper.make_opsetid(attributes["domain"], 1))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)
    for result in model.graph.output:
        # ONNX infers nothing for operators of other domains.
        if not result.type.HasField("tensor_type"):
            result.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return model, feeds


def by_runtime(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime computes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def by_reference(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What the ONNX project's reference implementation computes."""
    return ReferenceEvaluator(model).run(None, feeds)


def check_operator(
    operator: str,
    arrays: Arrays,
    outputs: int = 1,
    stored: Iterable[str] = (),
    opset: int = 20,
    reference: Reference = by_runtime,
    level: str = "O3",
    tolerance: float = 1e-5,
    **attributes: Any,
) -> list[np.ndarray]:
    """Compiles, runs and compares; returns what the compiled model computed."""
    model, feeds = operator_model(operator, arrays, outputs, stored, opset, **attributes)
    wanted = reference(model, feeds)
    compiled = run_model(model, feeds, level)
    found = [compiled[f"y{place}"] for place in range(outputs)]
    for got, want in zip(found, wanted, strict=True):
        want = np.asarray(want)
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    return found


def element_type(array: np.ndarray) -> int:
    """ONNX's number for the type of an array."""
    return helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype)


def assert_as_runtime(proto: onnx.ModelProto, rtol: float = 1e-6, **inputs: np.ndarray) -> None:
    """Compiles a model of one output; compares with ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (wanted,) = session.run(None, inputs)
    for level in levels_of(proto):
        (found,) = run_model(proto, inputs, level).values()
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=rtol)


def relax_operators(proto: onnx.ModelProto) -> set[str]:
    """Which of some operators the imported model has."""
    text = import_model(proto).mod.script()
    return {word for word in ("call_tir", "maximum", "minimum", "where", "take") if word in text}


def array_info(name: str, shape: list, dtype: object = np.float32) -> onnx.ValueInfoProto:
    """An input or output whose type is one of NumPy's."""
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
    )


def run_at_levels(proto: onnx.ModelProto, **inputs: np.ndarray) -> list[dict[str, np.ndarray]]:
    """What the model gives at each of ``levels_of`` it."""
    return [run_model(proto, inputs, level) for level in levels_of(proto)]
