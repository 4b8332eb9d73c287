"""Makes some sizes of a random graph's inputs dynamic, and inputs of other sizes."""

import random
from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
from graph_builder import RandomGraph

# Zero is left out: some operators of ONNX Runtime end the process then.
SIZES = (1, 2, 3, 5, 7, 8, 11, 16, 17, 31)


def with_dynamic_sizes(
    graph: RandomGraph, rng: random.Random
) -> tuple[onnx.ModelProto, dict[str, int]]:
    """The model with some sizes of its inputs dynamic, and the sizes that it was built with.

    Equal sizes get one name: what is added to each other stays as large as each other. Half of the
    models have a dynamic batch alone.
    """
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    firsts = Counter(array.shape[0] for array in graph.inputs.values() if array.ndim)
    batch = firsts.most_common(1)[0][0] if firsts else 0
    every = {size for array in graph.inputs.values() for size in array.shape if size > 1}
    only_batch = rng.random() < 0.5
    open_sizes = {batch} if only_batch else {size for size in sorted(every) if rng.random() < 0.6}
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value in open_sizes and not (only_batch and axis):
                dim.dim_param = f"size{dim.dim_value}"
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    dims = [dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim]
    return model, {d.dim_param: int(d.dim_param[4:]) for d in dims if d.dim_param}


def inputs_of(
    inputs: Mapping[str, np.ndarray], model: onnx.ModelProto, sizes: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """The graph's inputs, repeated or cut to other sizes."""
    found = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in dims]
        found[value.name] = np.resize(inputs[value.name], shape)
    return found
