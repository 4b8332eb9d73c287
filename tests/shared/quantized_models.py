"""Models of one quantised operator, in all domains, for the tests of unusual and damaged ones."""

from typing import Any

import numpy as np
import onnx
from microsoft_models import element_type
from onnx import helper, numpy_helper
from small_models import value

from tvm_ext.check.reference import run_reference

Arrays = dict[str, Any]


def quantized_node(
    op: str,
    inputs: Arrays,
    made: Any,
    opset: int = 21,
    domain: str = "",
    dynamic: bool = False,
    **attributes: Any,
) -> tuple[onnx.ModelProto, Arrays]:
    """A model of one node and what it is fed.

    ``inputs`` are in the node's order; those whose names begin with x are fed, with dynamic sizes
    if so asked, others are stored, None is left out. ``made`` is the type of the output "y", or
    types by name.
    """
    given = {name: array for name, array in inputs.items() if array is not None}
    fed = {name: np.asarray(array) for name, array in given.items() if name[0] == "x"}
    outputs = made if isinstance(made, dict) else {"y": made}
    names = [name if name in given else "" for name in inputs]
    while not names[-1]:
        names.pop()
    only = helper.make_node(op, names, list(outputs), name="it", domain=domain, **attributes)

    def sizes(name: str, array: np.ndarray) -> list[int | str]:
        return [f"{name}_{axis}" if dynamic else size for axis, size in enumerate(array.shape)]

    graph = helper.make_graph(
        [only],
        "small",
        [value(name, sizes(name, array), element_type(array)) for name, array in fed.items()],
        [value(name, None, dtype) for name, dtype in outputs.items()],
        [numpy_helper.from_array(np.asarray(given[name]), name) for name in given.keys() - fed],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), fed


def by_runtime(proto: onnx.ModelProto, inputs: Arrays) -> list[np.ndarray]:
    """What ONNX Runtime gives, without sums that saturate."""
    return list(run_reference(proto, inputs).values())


def assert_as_runtime(found: dict[str, np.ndarray], wanted: list[np.ndarray]) -> None:
    """Equal numbers of equal types; NaN equals NaN, and floats may differ in their last digits."""
    for one, other in zip(found.values(), wanted, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=1e-6)
        else:
            np.testing.assert_array_equal(one, other)
