"""Bodies of If and Loop, and models with them compared with ONNX Runtime."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from one_model import program
from onnx import TensorProto, helper, numpy_helper
from opt_levels import levels_of
from small_models import node, value
from unoptimised import HOST

import tvm_ext

# Bodies are kernels of their own, and O3 takes them half as long again as O0.
ONE_OF = 4


def body(nodes: list[onnx.NodeProto], *outputs: str, **weights: np.ndarray) -> onnx.GraphProto:
    """A branch of an If; ``weights`` become initializers of its own."""
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    return helper.make_graph(nodes, "body", [], [value(name, None) for name in outputs], stored)


def loop_body(
    nodes: list[onnx.NodeProto], carried: Sequence[str], outputs: str, going: str = ""
) -> onnx.GraphProto:
    """A body of a Loop over ``carried``; without ``going``, only the trip count ends it."""
    passed_on = [] if going else [node("Identity", ["going"], ["go_on"])]
    inputs = [value("i", [], TensorProto.INT64), value("going", [], TensorProto.BOOL)]
    inputs += [value(name, None) for name in carried]
    results = [value(going or "go_on", [], TensorProto.BOOL)]
    results += [value(name, None) for name in outputs.split()]
    return helper.make_graph([*nodes, *passed_on], "body", inputs, results)


def by_runtime(proto: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime computes, without its optimisations."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(feed))


def assert_same(
    proto: onnx.ModelProto,
    *feeds: Mapping[str, np.ndarray],
    levels: Sequence[str] = (),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    reference: onnx.ModelProto | None = None,
) -> None:
    """Compiles at each level, runs every feed and compares shapes, types and numbers.

    Without ``levels`` at those of ``levels_of``. ``reference`` is the same model in a form that
    ONNX Runtime takes.
    """
    wanted = [by_runtime(reference or proto, feed) for feed in feeds]
    for level in levels or levels_of(proto, ONE_OF):
        if input_shapes is None:
            compiled = program(proto, level)
        else:
            compiled = tvm_ext.compile(proto, HOST, opt_level=level, input_shapes=input_shapes)
        for feed, arrays in zip(feeds, wanted, strict=True):
            found = compiled.run(dict(feed))
            assert list(found) == [output.name for output in proto.graph.output]
            for got, array in zip(found.values(), arrays, strict=True):
                assert got.dtype == array.dtype
                assert got.shape == array.shape
                np.testing.assert_allclose(got, array, rtol=1e-5, atol=1e-6)


def assert_as_reference(proto: onnx.ModelProto, *feeds: dict, levels=()) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    for level in levels or levels_of(proto, ONE_OF):
        compiled = program(proto, level)
        for feed in feeds:
            found = list(compiled.run(feed).values())
            for got, wanted in zip(found, session.run(None, feed), strict=True):
                assert got.dtype == wanted.dtype
                assert got.size == wanted.size
                np.testing.assert_allclose(got.ravel(), wanted.ravel(), rtol=1e-5, atol=1e-6)
