"""Runs a random graph in ONNX Runtime and compiled, and tells how far apart the outputs are."""

import numpy as np
import onnx
import onnxruntime
from graph_builder import RandomGraph
from unoptimised import HOST

import tvm_ext

# Relative to the largest magnitude of an output.
TOLERANCE = {"float32": 3e-4, "float16": 2e-2}


def reference(graph: RandomGraph) -> dict[str, np.ndarray]:
    """Outputs of ONNX Runtime."""
    session = session_of(graph.model)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, graph.inputs), strict=True))


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """ONNX Runtime without its optimisations, on one thread."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def is_tame(expected: dict[str, np.ndarray]) -> bool:
    """Whether all outputs are numbers of a size that both sides can hold."""
    return all(np.isfinite(v).all() and np.abs(v).max(initial=0) < 1e4 for v in expected.values())


def differences(graph: RandomGraph, expected: dict[str, np.ndarray], opt_level: str) -> list[str]:
    """One line for each output that is not what ONNX Runtime computes."""
    compiled = tvm_ext.compile(graph.model, HOST, opt_level=opt_level)
    got = compiled.run(graph.inputs)
    assert list(got) == list(expected)
    return [
        f"{opt_level} {name}: {problem}"
        for name in expected
        if (problem := difference(got[name], expected[name]))
    ]


def difference(got: np.ndarray, wanted: np.ndarray) -> str:
    """What is wrong with an output; empty when nothing is."""
    if (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
        return f"{got.dtype}{got.shape}, expected {wanted.dtype}{wanted.shape}"
    if not np.isfinite(got).all():
        return "not finite"
    if not wanted.size:
        return ""
    scale = max(float(np.abs(wanted).max()), 1e-2)
    error = float(np.abs(got.astype(np.float64) - wanted.astype(np.float64)).max()) / scale
    return f"off by {error:.2e} of {scale:.3g}" if error > TOLERANCE[str(wanted.dtype)] else ""


def operators_of(model: onnx.ModelProto) -> list[str]:
    """Operator types of the graph, for messages."""
    return [node.op_type for node in model.graph.node]
