"""Runs a model in ONNX Runtime, on the CPU: the answer that a compiled model is compared with."""

import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tvm_ext.check.tolerance import compare, plain_arrays
from tvm_ext.check.unsigned_bytes import with_unsigned_bytes
from tvm_ext.configs.progress import tell
from tvm_ext.errors import ReferenceUnavailableError
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.cpu.system import usable_cores
from tvm_ext.onnx_frontend.onnx_graph import nodes_within

# ONNX Runtime's severities run from 0 (verbose) to 4 (fatal); what matters comes as an exception.
_FATAL_ONLY = 4

_X86 = ("x86_64", "amd64")


class ReferenceSession:
    """A model ready to run in ONNX Runtime as often as wanted.

    Parameters
    ----------
    source : str, Path or onnx.ModelProto
        The model or the path of its file. A model above 2 GB must be given by its path.
    threads : int, optional
        Threads within an operator; as many as there are usable cores when left out.
    optimise : bool
        Whether ONNX Runtime may rewrite the graph (all its levels), or runs it as it stands.
    exact : bool
        Whether sums of products of 8-bit integers must not saturate, as they may on CPUs without
        VNNI: see ``unsigned_bytes``. It takes longer.

    Attributes
    ----------
    has_unsigned_bytes : bool
        Whether it runs the model with unsigned bytes in place of signed ones, for that.

    Raises
    ------
    ReferenceUnavailableError
        ONNX Runtime is not installed, or refuses the model.
    """

    def __init__(
        self,
        source: str | Path | onnx.ModelProto,
        threads: int | None = None,
        optimise: bool = True,
        exact: bool = True,
    ) -> None:
        tell("ONNX Runtime")
        runtime = _onnx_runtime()
        levels = runtime.GraphOptimizationLevel
        chosen = {
            "intra_op_num_threads": usable_cores() if threads is None else threads,
            "inter_op_num_threads": 1,
            "log_severity_level": _FATAL_ONLY,
            "graph_optimization_level": (
                levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
            ),
        }
        options = runtime.SessionOptions()
        for name, value in chosen.items():
            setattr(options, name, value)
        try:
            unsigned = with_unsigned_bytes(source) if exact else None
            self.has_unsigned_bytes = unsigned is not None
            given = source if unsigned is None else unsigned
            # A path is left to ONNX Runtime, which then finds external data beside the file.
            loadable = (
                given.SerializeToString() if isinstance(given, onnx.ModelProto) else str(given)
            )
            self._session = runtime.InferenceSession(
                loadable, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise _refusal(
                f"ONNX Runtime {runtime.__version__} refuses the model", error
            ) from error
        self.input_names = tuple(value.name for value in self._session.get_inputs())
        self.output_names = tuple(value.name for value in self._session.get_outputs())

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One array for each output, under its name; inputs that the model lacks are left out.

        Raises
        ------
        ReferenceUnavailableError
            ONNX Runtime fails on these inputs.
        """
        known = {name: inputs[name] for name in self.input_names if name in inputs}
        try:
            values = self._session.run(None, known)
        except Exception as error:
            raise _refusal("ONNX Runtime failed to run the model", error) from error
        return dict(zip(self.output_names, values, strict=True))


def run_reference(
    source: str | Path | onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    threads: int | None = None,
    optimise: bool = True,
) -> dict[str, np.ndarray]:
    """The outputs of one run in ONNX Runtime; the parameters are those of ``ReferenceSession``.

    Raises
    ------
    ReferenceUnavailableError
        ONNX Runtime is not installed, refuses the model, or fails on the inputs.
    """
    return ReferenceSession(source, threads, optimise).run(inputs)


# Numbers are moved by so much of themselves: some steps of float32, far below a step of 8 bits; by
# one step of float16.
_MOVED = 1e-6
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


def quantises(model: onnx.ModelProto) -> bool:
    """Whether numbers are rounded to steps in a run: differences of float32 may become a step."""
    nodes = [
        *nodes_within(model.graph),
        *(n for function in model.functions for n in function.node),
    ]
    names = {node.op_type for node in nodes} - {"QuickGelu"}
    return any(name.startswith(("Q", "DynamicQuantize")) for name in names)


def reference_spreads(
    source: str | Path | onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray],
) -> dict[str, float]:
    """By floating-point output: how far ``reference`` is from others that ONNX Runtime gives.

    They are its outputs without optimisations, and those for inputs, or else stored numbers, that
    are moved by 1e-6 of themselves: scales move numbers against the steps of every layer. Distances
    are relative to the largest magnitude. One that it refuses counts nothing.
    """
    others = []
    with suppress(ReferenceUnavailableError):
        others.append(run_reference(source, inputs, optimise=False))
    session = ReferenceSession(source)
    model = source if isinstance(source, onnx.ModelProto) else onnx.load_model(source)
    # Above 2 GB ONNX Runtime takes a model from its file only.
    is_one_message = model.ByteSize() < onnx.checker.MAXIMUM_PROTOBUF
    for sign in (1, -1):
        with suppress(ReferenceUnavailableError):
            others.append(session.run(_moved(inputs, sign)))
        if is_one_message:
            with suppress(ReferenceUnavailableError):
                others.append(run_reference(_moved_model(model, sign), inputs))
    floats = {name: array for name, array in reference.items() if array.dtype.kind == "f"}
    found = dict.fromkeys(floats, 0.0)
    for other in others:
        for difference in compare(plain_arrays(other), floats, np.inf):
            # What cannot be subtracted says nothing of how far apart the two are.
            distance = np.nan_to_num(difference.max_rel, nan=0.0, posinf=0.0)
            found[difference.name] = max(found[difference.name], float(distance))
    return found


def saturation(
    source: str | Path | onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray],
) -> float:
    """How far ONNX Runtime's outputs for the model as it stands are from exact ones of its own.

    The distance is relative to the largest magnitude of an output; 0 on CPUs where nothing
    saturates.
    """
    if platform.machine().lower() not in _X86 or host_description().has_dot_products:
        return 0.0
    plain = plain_arrays(ReferenceSession(source, exact=False).run(inputs))
    distances = [difference.max_rel for difference in compare(plain, reference, np.inf)]
    return float(np.nan_to_num(max(distances, default=0.0), nan=0.0, posinf=0.0))


def _moved(arrays: Mapping[str, np.ndarray], sign: int) -> dict[str, np.ndarray]:
    """Each floating-point number a little up or down, drawn alike for both signs."""
    random = np.random.default_rng(0)
    moved = dict(arrays)
    for name, value in arrays.items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            step = max(_MOVED, float(np.finfo(value.dtype).eps))
            factor = 1 + sign * step * random.choice([-1, 1], value.shape)
            moved[name] = np.asarray(value * factor.astype(value.dtype))
    return moved


def _moved_model(model: onnx.ModelProto, sign: int) -> onnx.ModelProto:
    """The model with what its graph stores moved."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    stored = {tensor.name: tensor for tensor in found.graph.initializer}
    stored |= {
        node.output[0]: attribute.t
        for node in found.graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    floats = {name: tensor for name, tensor in stored.items() if tensor.data_type in _FLOATS}
    arrays = {name: numpy_helper.to_array(tensor) for name, tensor in floats.items()}
    for name, array in _moved(arrays, sign).items():
        floats[name].CopyFrom(numpy_helper.from_array(array, floats[name].name))
    return found


def _onnx_runtime() -> ModuleType:
    try:
        import onnxruntime
    except ImportError as error:
        raise ReferenceUnavailableError(
            "ONNX Runtime, the reference, cannot be imported "
            f"({error}); expected the package: pip install onnxruntime"
        ) from error
    return onnxruntime


def _refusal(what: str, error: Exception) -> ReferenceUnavailableError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Its messages begin with "[ONNXRuntimeError] : <code> : <name> : ".
    reason = lines[0].split(" : ", 3)[-1][:300] if lines else type(error).__name__
    return ReferenceUnavailableError(
        f"{what} ({reason}); expected one that it runs: compare with another reference, "
        "or run the model without a check"
    )
