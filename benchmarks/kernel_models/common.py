"""What all kernels share: their record, their sizes, and the making of an ONNX model."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSET, _IR_VERSION = 20, 9
FLOAT_BYTES = 4

Shape = Sequence[int]


@dataclass(frozen=True)
class KernelModel:
    """One kernel.

    Attributes
    ----------
    name, group : str
        What ``--kernels`` takes.
    flops : float
        Operations of the definition, however they are computed: a multiply-add is two, an
        elementary function (erf, exp, tanh) one.
    bytes : float
        Inputs, weights and outputs, each counted once.
    limit : "flops" or "bytes"
        Which of the machine's peaks the kernel is held against.
    build : callable
        Makes the model, with random weights.
    """

    name: str
    group: str
    flops: float
    bytes: float
    limit: Literal["flops", "bytes"]
    build: Callable[[], onnx.ModelProto]


@dataclass(frozen=True)
class Scale:
    """How large the kernels are: as in real networks, or a fraction of it for a quick test.

    Attributes
    ----------
    large_bytes : int
        Least size of the tensors that shall not fit into any cache.
    divisor : int
        Divides every size of 16 and above.
    """

    large_bytes: int
    divisor: int = 1

    def size(self, full: int) -> int:
        """``full`` on this scale."""
        return full if full < 16 else max(1, full // self.divisor)

    def sizes(self, full: Shape) -> tuple[int, ...]:
        """``size`` of each."""
        return tuple(self.size(one) for one in full)

    def rows(self, row: Shape) -> int:
        """How many rows of this shape make a tensor that is beyond the caches."""
        return max(1, math.ceil(self.large_bytes / (FLOAT_BYTES * math.prod(row))))


def float_bytes(*shapes: Shape) -> float:
    """Bytes of float32 tensors of these shapes."""
    return float(FLOAT_BYTES * sum(math.prod(shape) for shape in shapes))


def random_weights(shape: Shape, fan_in: int = 1) -> np.ndarray:
    """Normal float32 values, scaled so that sums over ``fan_in`` of them stay near 1."""
    values = np.random.default_rng(0).standard_normal(tuple(shape), np.float32)
    return np.asarray(values / np.float32(math.sqrt(fan_in)))


def onnx_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    output: Shape,
    weights: Mapping[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    """A checked float32 model with these inputs and the output ``y``."""
    graph = helper.make_graph(
        nodes,
        "kernel",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
            for name, shape in inputs.items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(output))],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION
    )
    onnx.checker.check_model(model, full_check=True)
    return model
