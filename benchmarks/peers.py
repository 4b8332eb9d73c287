"""The programs that are compared: tvm-ext, ONNX Runtime, OpenVINO, TVM as it comes, PyTorch."""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import tvm
from onnx import numpy_helper
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

import tvm_ext
from tvm_ext.errors import TvmExtError
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.cpu.measured_peaks import use_tvm_threads
from tvm_ext.hardware.cpu.threads import thread_pool
from tvm_ext.hardware.timing import Timer
from tvm_ext.model_inputs import check_inputs
from tvm_ext.program_call import to_array

# Compile times are measured too.
os.environ["TVM_EXT_CACHE"] = "off"


# What every program that is compared has to offer.


_REASON_LENGTH = 160


class PeerError(TvmExtError):
    """A peer is not installed, or cannot take a model."""


@dataclass(frozen=True)
class Job:
    """One model to prepare.

    Attributes
    ----------
    path : Path
        The ONNX file.
    inputs : dict[str, np.ndarray]
        One array an input, under its ONNX name; their shapes are the shapes to compile for.
    threads : int
        Threads that a run may use.
    is_kernel : bool
        Whether the model is a single kernel rather than a network. Of a kernel the computation
        alone is measured: its inputs and outputs stay where the program keeps them. A network's
        inputs come as NumPy arrays and its outputs are such arrays, as a user has them.
    """

    path: Path
    inputs: dict[str, np.ndarray]
    threads: int
    is_kernel: bool


@dataclass(frozen=True)
class Program:
    """A model ready to run on fixed inputs.

    Attributes
    ----------
    run : callable
        One inference; this is what is timed.
    outputs : callable
        Runs once and returns the outputs in the order of the model's; later runs leave them alone.
    """

    run: Callable[[], object]
    outputs: Callable[[], Sequence[np.ndarray]]


class Peer(Protocol):
    """Another way to run an ONNX model on this CPU."""

    @property
    def name(self) -> str:
        """What ``--peers`` calls it."""
        ...

    @property
    def title(self) -> str:
        """What tables call it."""
        ...

    def version(self) -> str:
        """The installed version; raises PeerError where it is not installed."""
        ...

    def prepare(self, job: Job) -> Program:
        """The model, compiled; raises PeerError, with the reason, where the peer refuses it."""
        ...


def package_version(package: str) -> str:
    """Version of an installed distribution; raises PeerError where there is none."""
    try:
        return installed_version(package)
    except PackageNotFoundError as error:
        raise PeerError(f"not installed; expected the package: pip install {package}") from error


def refusal(what: str, error: BaseException) -> PeerError:
    """``error`` in one short line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # TVM's messages end with what is wrong; those of the others begin with it.
    line = lines[-1 if "Traceback" in str(error) else 0] if lines else type(error).__name__
    return PeerError(f"{what}: {line[:_REASON_LENGTH]}")


# tvm-ext itself, whole or with passes left out.


@dataclass(frozen=True)
class Ours:
    """``CompiledModel.run``; of a kernel, the virtual machine's call on tensors that are there."""

    name: str = "tvm_ext"
    title: str = "tvm-ext"
    disabled_passes: tuple[str, ...] = ()
    precision: str = "model"

    def version(self) -> str:
        """See ``Peer``."""
        return tvm_ext.__version__

    def compile(
        self, path: Path, shapes: Mapping[str, Sequence[int]], threads: int
    ) -> tvm_ext.CompiledModel:
        """The model for ``threads`` cores of this machine; raises TvmExtError."""
        return tvm_ext.compile(
            path,
            target=host_description().with_cores(threads),
            input_shapes=shapes,
            disabled_passes=self.disabled_passes,
            precision=self.precision,
        )

    def prepare(self, job: Job) -> Program:
        """See ``Peer``."""
        shapes = {name: array.shape for name, array in job.inputs.items()}
        try:
            model = self.compile(job.path, shapes, job.threads)
        except tvm_ext.TvmExtError as error:
            raise PeerError(str(error)) from error
        return program(model, job)


def program(model: tvm_ext.CompiledModel, job: Job) -> Program:
    """A compiled model on the inputs of ``job``."""
    names = [spec.name for spec in model.outputs]
    if not job.is_kernel:
        return Program(
            lambda: model.run(job.inputs), lambda: _in_order(model.run(job.inputs), names)
        )
    main, tensors = _bound(model, job)

    def run() -> Any:
        thread_pool.use_threads(job.threads)
        return main(*tensors)

    def outputs() -> list[np.ndarray]:
        result = run()
        values = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        return [to_array(value) for value in values]

    return Program(run, outputs)


def kernel_timer(model: tvm_ext.CompiledModel, job: Job, kernels: Collection[str]) -> Timer:
    """A timer of a run that counts the calls of ``kernels`` only, by the hook of TVM's machine."""
    machine = model._new_machine()
    tensors = [tvm.runtime.tensor(a) for a in check_inputs(model.inputs, job.inputs)]
    watch = _KernelWatch(frozenset(kernels))
    machine.set_instrument(watch)
    main = machine["main"]

    def seconds() -> float:
        thread_pool.use_threads(job.threads)
        watch.seconds = 0.0
        main(*tensors)
        return watch.seconds

    return seconds


class _KernelWatch:
    """Adds up the time of the calls of some kernels."""

    def __init__(self, kernels: frozenset[str]) -> None:
        self.seconds = 0.0
        self._kernels = kernels
        self._begun = 0.0

    def __call__(self, func: Any, name: str, before: bool, result: Any, *args: Any) -> int:
        now = time.perf_counter()
        if before:
            self._begun = time.perf_counter()
        elif str(name) in self._kernels:
            self.seconds += now - self._begun
        return int(tvm.runtime.vm.VMInstrumentReturnKind.NO_OP)


def _bound(model: tvm_ext.CompiledModel, job: Job) -> tuple[Any, list[tvm.runtime.Tensor]]:
    """The program's entry and its inputs as tensors: what ``run`` uses, without the copies."""
    call = model._made()
    return call.main, call.filled(check_inputs(model.inputs, job.inputs))


def _in_order(outputs: Mapping[str, np.ndarray], names: Sequence[str]) -> list[np.ndarray]:
    return [outputs[name] for name in names]


# ONNX Runtime on the CPU with all of its graph optimisations.


# ONNX Runtime's severities run from 0 (verbose) to 4 (fatal); what matters comes as an exception.
_FATAL_ONLY = 4


class OnnxRuntime:
    """``InferenceSession.run``; of a kernel, with its inputs and outputs bound."""

    name = "onnxruntime"
    title = "ONNX Runtime"

    def version(self) -> str:
        """See ``Peer``."""
        return package_version("onnxruntime")

    def prepare(self, job: Job) -> Program:
        """See ``Peer``."""
        self.version()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = job.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL_ONLY
        try:
            session = onnxruntime.InferenceSession(
                str(job.path), options, providers=["CPUExecutionProvider"]
            )
            known = {value.name for value in session.get_inputs()}
            feed = {name: array for name, array in job.inputs.items() if name in known}
            outputs = [np.asarray(array) for array in session.run(None, feed)]
        except Exception as error:
            raise _refusal(error) from error
        if not job.is_kernel:
            return Program(lambda: session.run(None, feed), lambda: session.run(None, feed))
        binding = session.io_binding()
        kept = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in outputs]
        for name, array in feed.items():
            binding.bind_cpu_input(name, array)
        for value, place in zip(session.get_outputs(), kept, strict=True):
            binding.bind_ortvalue_output(value.name, place)

        def bound_outputs() -> list[np.ndarray]:
            session.run_with_iobinding(binding)
            # Views of memory that goes with the binding.
            return [np.array(place.numpy()) for place in kept]

        return Program(lambda: session.run_with_iobinding(binding), bound_outputs)


def _refusal(error: Exception) -> PeerError:
    # Its messages begin with "[ONNXRuntimeError] : <code> : <name> : ".
    short = str(error).split(" : ", 3)[-1]
    return refusal("refuses the model", RuntimeError(short))


# OpenVINO on the CPU, tuned for latency.


@dataclass
class OpenVino:
    """``InferRequest.infer`` on the caller's arrays, its outputs not copied: its fastest call.

    In float32, or in the type that ``precision`` names as OpenVINO does.
    """

    name: str = "openvino"
    title: str = "OpenVINO"
    precision: str = "f32"

    def version(self) -> str:
        """See ``Peer``."""
        return package_version("openvino")

    def prepare(self, job: Job) -> Program:
        """See ``Peer``."""
        self.version()
        import openvino

        settings = {
            "INFERENCE_PRECISION_HINT": self.precision,
            "INFERENCE_NUM_THREADS": job.threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        try:
            core = openvino.Core()
            model = core.read_model(str(job.path))
            known = {name for port in model.inputs for name in port.get_names()}
            feed = {name: array for name, array in job.inputs.items() if name in known}
            model.reshape({name: list(array.shape) for name, array in feed.items()})
            request = core.compile_model(model, "CPU", settings).create_infer_request()
            request.infer(feed)
        except Exception as error:
            raise refusal("refuses the model", error) from error

        def outputs() -> list[np.ndarray]:
            result = request.infer(feed)
            return [np.array(result[index]) for index in range(len(model.outputs))]

        return Program(lambda: request.infer(feed, share_inputs=True, share_outputs=True), outputs)


# TVM as it comes: its own ONNX importer and its default pipeline, for this CPU.


class StockTvm:
    """The virtual machine's call on tensors that are there already."""

    name = "tvm"
    title = "stock TVM"

    def version(self) -> str:
        """See ``Peer``."""
        return package_version("apache-tvm")

    def prepare(self, job: Job) -> Program:
        """See ``Peer``."""
        target = host_description().with_cores(job.threads).tvm_target()
        shapes = {name: list(array.shape) for name, array in job.inputs.items()}
        try:
            mod = from_onnx(onnx.load(job.path), shape_dict=shapes, keep_params_in_input=False)
            pipeline = relax.get_default_pipeline(target)
            program = tvm.compile(mod, target=target, relax_pipeline=pipeline)
            main = relax.VirtualMachine(program, tvm.cpu())["main"]
            order = [str(param.name) for param in mod["main"].params]
            tensors = [tvm.runtime.tensor(job.inputs[name]) for name in order]
        except Exception as error:
            raise refusal("refuses the model", error) from error

        def run() -> Any:
            use_tvm_threads(job.threads)
            return main(*tensors)

        def outputs() -> list[np.ndarray]:
            result = run()
            values = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
            return [value.numpy() for value in values]

        return Program(run, outputs)


# PyTorch's operators on the CPU, one after the other, for the few that the kernels are made of.


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


__all__ = ["OURS", "PEERS", "REFERENCE", "UNFUSED", "Job", "Peer", "PeerError", "Program"]

OURS = Ours()
# Every operator a kernel of its own, but scheduled and vectorised as always: what fusion saves.
UNFUSED = Ours("unfused", "unfused", disabled_passes=("FuseOperators", "FuseTIR"))
REFERENCE = OnnxRuntime()
PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        REFERENCE,
        OpenVino(),
        OpenVino("openvino_bf16", "OpenVINO bf16", "bf16"),
        Ours("tvm_ext_bf16", "tvm-ext bf16", precision="bfloat16"),
        StockTvm(),
        PyTorch(),
    )
}
