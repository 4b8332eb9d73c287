"""A run on zeros before the first one that a user waits for.

It leaves code, weights, threads and, for the sizes that it takes, storage where a run finds them.
"""

from collections.abc import Sequence

import numpy as np

from tvm_ext.narrow_dtypes import numpy_type
from tvm_ext.open_dimensions import example_size
from tvm_ext.report.compile_report import CompileReport
from tvm_ext.tensor_spec import TensorSpec

# Modelled time of a run, up to which a model is run ahead.
_SECONDS = 0.25

_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})


def zeros_to_run(
    inputs: Sequence[TensorSpec], report: CompileReport
) -> dict[str, np.ndarray] | None:
    """Inputs of a run ahead; None where it would take long, or could end in another way than well.

    Open sizes are those that models of the kind usually have: one element of a batch, an image, a
    short text. Sizes that several inputs could contradict each other in are not guessed.
    """
    graph = report.graph
    if (report.estimated_seconds or 0.0) >= _SECONDS or _CONTROL_FLOW & graph.prepared_nodes.keys():
        return None
    if graph.divides_by_data or graph.sizes_from_data:
        return None
    shapes = [_usual_shape(spec) for spec in inputs]
    guessed = {size for spec in inputs for size in spec.shape[1:] if isinstance(size, str)}
    if len(inputs) > 1 and len(guessed) > 1:
        return None
    found = {}
    for spec, shape in zip(inputs, shapes, strict=True):
        if shape is None:
            return None
        found[spec.name] = np.zeros(shape, numpy_type(spec.dtype))
    return found


def _usual_shape(spec: TensorSpec) -> list[int] | None:
    """Sizes to run with; None for signals, videos and the like, whose sizes nobody can guess."""
    ranges = spec.ranges or (None,) * len(spec.shape)
    rank = len(spec.shape)
    sizes: list[int] = []
    for axis, (size, allowed) in enumerate(zip(spec.shape, ranges, strict=True)):
        # Of texts, which are integers, and of images the usual size is known.
        is_signal = axis > 0 and rank != 4 and "int" not in spec.dtype
        if allowed is not None:
            sizes.append(allowed.low)
        elif isinstance(size, str) and is_signal:
            return None
        else:
            sizes.append(example_size(size, axis, rank))
    return sizes
