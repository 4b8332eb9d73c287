"""PyTorch's operators on the CPU, one after the other, for the few that the kernels are made of."""

from collections.abc import Callable, Sequence
from typing import Any

import onnx
from onnx import numpy_helper

from peers.peer import Job, PeerError, Program, package_version, refusal

_Operator = Callable[[Any, list[Any], dict[str, Any]], Any]


class PyTorch:
    """Eager calls under ``torch.inference_mode``; kernels only, since it takes no ONNX file.

    Each call allocates its result, as a call of PyTorch does; that is part of its time.
    """

    name = "pytorch"
    title = "PyTorch"

    def version(self) -> str:
        """See ``Peer``."""
        return package_version("torch")

    def prepare(self, job: Job) -> Program:
        """See ``Peer``."""
        if not job.is_kernel:
            raise PeerError("takes single kernels only (--kernels): it does not read ONNX")
        self.version()
        import torch

        torch.set_num_threads(job.threads)
        graph = onnx.load(job.path).graph
        missing = sorted({node.op_type for node in graph.node} - _OPERATORS.keys())
        if missing:
            raise PeerError(f"no call is known here for {', '.join(missing)}")
        constants = {
            tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy())
            for tensor in graph.initializer
        }
        constants |= {name: torch.from_numpy(array) for name, array in job.inputs.items()}

        def run() -> list[Any]:
            with torch.inference_mode():
                return _evaluate(torch, graph, constants)

        try:
            run()
        except Exception as error:
            raise refusal("fails", error) from error
        return Program(run, lambda: [value.numpy() for value in run()])


def _evaluate(torch: Any, graph: onnx.GraphProto, constants: dict[str, Any]) -> list[Any]:
    values = dict(constants)
    for node in graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        operands = [values[name] for name in node.input if name]
        values[node.output[0]] = _OPERATORS[node.op_type](torch, operands, attributes)
    return [values[output.name] for output in graph.output]


def _even_pads(attributes: dict[str, Any], rank: int) -> list[int]:
    pads = list(attributes.get("pads", [0] * 2 * rank))
    if pads[:rank] != pads[rank:]:
        raise ValueError(f"pads are {pads}; expected the same before and after")
    return pads[:rank]


def _convolution(torch: Any, operands: list[Any], attributes: dict[str, Any]) -> Any:
    rank = operands[1].ndim - 2
    call = getattr(torch.nn.functional, f"conv{rank}d")
    return call(
        *operands,
        stride=attributes.get("strides", [1] * rank),
        padding=_even_pads(attributes, rank),
        dilation=attributes.get("dilations", [1] * rank),
        groups=attributes.get("group", 1),
    )


def _transposed_convolution(torch: Any, operands: list[Any], attributes: dict[str, Any]) -> Any:
    rank = operands[1].ndim - 2
    call = getattr(torch.nn.functional, f"conv_transpose{rank}d")
    return call(
        *operands,
        stride=attributes.get("strides", [1] * rank),
        padding=_even_pads(attributes, rank),
        groups=attributes.get("group", 1),
    )


def _pooling(kind: str) -> _Operator:
    def call(torch: Any, operands: list[Any], attributes: dict[str, Any]) -> Any:
        size: Sequence[int] = attributes["kernel_shape"]
        pads = _even_pads(attributes, len(size))
        strides = attributes.get("strides", [1] * len(size))
        return getattr(torch.nn.functional, kind)(operands[0], size, strides, pads)

    return call


def _layer_norm(torch: Any, operands: list[Any], attributes: dict[str, Any]) -> Any:
    x, *affine = operands
    return torch.nn.functional.layer_norm(
        x, affine[0].shape, *affine, eps=attributes.get("epsilon", 1e-5)
    )


def _gemm(torch: Any, operands: list[Any], attributes: dict[str, Any]) -> Any:
    a, b = operands[:2]
    a = a.t() if attributes.get("transA") else a
    b = b.t() if attributes.get("transB") else b
    return torch.addmm(operands[2], a, b) if len(operands) > 2 else torch.matmul(a, b)


_OPERATORS: dict[str, _Operator] = {
    "Add": lambda torch, x, _: torch.add(*x),
    "AveragePool": _pooling("avg_pool2d"),
    "Clip": lambda torch, x, _: torch.clamp(*x),
    "Concat": lambda torch, x, a: torch.cat(x, dim=a["axis"]),
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "Gelu": lambda torch, x, _: torch.nn.functional.gelu(x[0]),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda torch, x, _: x[0].mean(dim=(2, 3), keepdim=True),
    "LayerNormalization": _layer_norm,
    "MatMul": lambda torch, x, _: torch.matmul(*x),
    "MaxPool": _pooling("max_pool2d"),
    "Mul": lambda torch, x, _: torch.mul(*x),
    "Relu": lambda torch, x, _: torch.relu(x[0]),
    "Sigmoid": lambda torch, x, _: torch.sigmoid(x[0]),
    "Softmax": lambda torch, x, a: torch.softmax(x[0], dim=a.get("axis", -1)),
    "Sub": lambda torch, x, _: torch.sub(*x),
    "Tanh": lambda torch, x, _: torch.tanh(x[0]),
    "Transpose": lambda torch, x, a: x[0].permute(a["perm"]).contiguous(),
}
