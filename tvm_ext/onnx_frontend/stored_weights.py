"""Weights that stay beside the model until they are imported.

A protobuf message holds at most 2 GB, and ONNX's checker, its shape inference and onnxscript all
write the model as one. Of a model above that, large weights are taken for inputs meanwhile: their
types and shapes are known, their values are asked for by nobody.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.nan_weights import refuse_nan

# Somewhat less than protobuf takes, since preparation adds nodes and shapes.
WHOLE_BYTES = 1_900_000_000
# Smaller tensors (shapes, scales, tables) are loaded: their values decide how nodes are converted.
LARGE_BYTES = 1 << 20


@dataclass
class StoredWeights:
    """Tensors in files in the model's folder, by name; none for a model that fits a message."""

    folder: Path = Path()
    tensors: dict[str, TensorProto] = field(default_factory=dict)

    def read(self, tensor: TensorProto) -> np.ndarray:
        """The values of a tensor in this folder.

        Raises
        ------
        ModelError
            The file is missing, too short or outside of the folder, or holds NaN.
        """
        label = str(self.folder)
        try:
            values = numpy_helper.to_array(tensor, label)
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            raise ModelError(
                f"{label}: stored tensor '{tensor.name}' cannot be read; expected its values, all "
                "of them, in a file in the model's folder: copy it there"
            ) from error
        if values.dtype.kind == "f":
            refuse_nan(values, tensor.name, label)
        return values


def take_out_large_weights(model: onnx.ModelProto, folder: Path) -> StoredWeights:
    """Makes inputs of the large external initializers of a model that is above the limit."""
    stored = StoredWeights(folder)
    sizes = {t.name: _bytes(t) for t in model.graph.initializer if _is_external(t)}
    if sum(sizes.values()) + model.ByteSize() < WHOLE_BYTES:
        return stored
    declared = {value.name for value in model.graph.input}
    kept = []
    for tensor in model.graph.initializer:
        if sizes.get(tensor.name, 0) < LARGE_BYTES:
            kept.append(tensor)
            continue
        stored.tensors[tensor.name] = TensorProto.FromString(tensor.SerializeToString())
        if tensor.name not in declared:
            shape = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            model.graph.input.append(shape)
    copies = [TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
    del model.graph.initializer[:]
    model.graph.initializer.extend(copies)
    return stored


def put_back(graph: onnx.GraphProto, stored: StoredWeights) -> None:
    """Turns the inputs that were taken for weights into initializers again, without values."""
    inputs = [value for value in graph.input if value.name not in stored.tensors]
    if len(inputs) == len(graph.input):
        return
    copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in inputs]
    weights = [stored.tensors[v.name] for v in graph.input if v.name in stored.tensors]
    del graph.input[:]
    graph.input.extend(copies)
    graph.initializer.extend(weights)


def _is_external(tensor: TensorProto) -> bool:
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def _bytes(tensor: TensorProto) -> int:
    """What the tensor declares; a type without a size in NumPy counts as one byte an element."""
    try:
        size = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except KeyError:
        size = 1
    return math.prod(max(int(extent), 0) for extent in tensor.dims) * size
