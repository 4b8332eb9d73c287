"""Measures cases and models: outputs are compared first, then the programs take turns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from peers import refusal

from gpu.cases import Case
from gpu.programs import (
    CudaPeer,
    Model,
    Program,
    Stopwatch,
    compiled_by_torch,
    device_tensor,
    host_arrays,
    largest_difference,
    onnx_runtime,
)
from tvm_ext.check.inputs import random_inputs
from tvm_ext.check.reference import ReferenceSession
from tvm_ext.errors import ReferenceUnavailableError, TvmExtError
from tvm_ext.onnx_frontend import import_model
from tvm_ext.onnx_frontend.load import load_model

OURS = "tvm-ext"

# Relative to the largest magnitude of an output: some roundings of the type, and sums of the same
# products in another order.
_TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}
_MODEL_TOLERANCE = 2e-2

# What programs, PyTorch and readers of models raise.
_FAILURES = (TvmExtError, RuntimeError, ValueError, TypeError, OSError)


@dataclass
class Result:
    """One line: seconds by program, reasons of those that are missing.

    ``difference`` is relative to the largest magnitude of an output, from those of
    ``compared_with``; None where there was nothing to compare with.
    """

    name: str
    group: str
    dtype: str = ""
    work: float = 0.0
    limit: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    started: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    difference: float | None = None
    compared_with: str = ""
    wrong: bool = False

    @property
    def failed(self) -> bool:
        """Whether ours is missing or wrong."""
        return self.wrong or OURS not in self.seconds

    def compare(
        self, results: Sequence[np.ndarray], wanted: Sequence[np.ndarray], who: str, most: float
    ) -> None:
        """Notes how far our outputs are from those of ``who``."""
        self.difference, self.compared_with = largest_difference(results, wanted), who
        self.wrong = not self.difference <= most


@dataclass(frozen=True)
class CudaSettings:
    """The same for all programs.

    Attributes
    ----------
    tf32 : bool
        Whether products of float32 may be rounded to tf32.
    compile_mode : str
        That of ``torch.compile``.
    """

    tf32: bool = False
    compile_mode: str = "default"


class Bench:
    """Measures one thing after the other; what fails is a reason, and the next one is measured.

    An error that takes the process's CUDA context leaves nothing to measure with: then all that
    follows is missing for that reason.
    """

    def __init__(self, torch: Any, watch: Stopwatch, settings: CudaSettings) -> None:
        self._torch = torch
        self._watch = watch
        self._settings = settings
        self._lost = ""

    def kernel(self, case: Case) -> Result:
        """A kernel beside PyTorch's."""
        torch = self._torch
        result = Result(case.name, case.group, case.dtype, case.work, case.limit)

        def measure(programs: dict[str, Program]) -> None:
            torch.manual_seed(0)
            kind = getattr(torch, case.dtype)
            tensors = [torch.randn(*shape, device="cuda", dtype=kind) for shape in case.shapes]
            both = [*tensors, *(device_tensor(torch, array) for array in case.weights)]
            self._prepare(result, programs, "PyTorch", lambda: self._eager(case, both))
            if case.images:
                last = [tensor.to(memory_format=torch.channels_last) for tensor in both]
                self._prepare(
                    result, programs, "PyTorch, channels last", lambda: self._eager(case, last)
                )
            names = [value.name for value in case.model.graph.input]
            named = dict(zip(names, tensors, strict=True))
            self._prepare(result, programs, OURS, lambda: self._ours(case.model, named))
            if OURS in programs and "PyTorch" in programs:
                found, wanted = (host_arrays(torch, programs[n]()) for n in (OURS, "PyTorch"))
                result.compare(found, wanted, "PyTorch", _TOLERANCE[case.dtype])

        return self._measured(result, measure)

    def model(self, path: Path, shapes: Mapping[str, Sequence[int]]) -> Result:
        """A model beside torch.compile and ONNX Runtime's CUDA provider."""
        torch, settings = self._torch, self._settings
        result = Result(path.stem, "model")

        def measure(programs: dict[str, Program]) -> None:
            names = {value.name for value in load_model(path).graph.input}
            given = {name: sizes for name, sizes in shapes.items() if name in names}
            arrays = random_inputs(import_model(path, given or None).inputs, 0)
            tensors = {name: device_tensor(torch, array) for name, array in arrays.items()}
            offers: dict[str, Callable[[], Program]] = {
                OURS: lambda: self._ours(path, tensors),
                "torch.compile": lambda: compiled_by_torch(
                    torch, path, list(tensors.values()), settings.compile_mode
                ),
                "ONNX Runtime": lambda: onnx_runtime(path, tensors, settings.tf32),
            }
            for name, offer in offers.items():
                self._prepare(result, programs, name, offer)
            if OURS in programs:
                self._compare_model(result, programs, path, arrays)

        return self._measured(result, measure)

    def _compare_model(
        self,
        result: Result,
        programs: dict[str, Program],
        path: Path,
        arrays: Mapping[str, np.ndarray],
    ) -> None:
        """With ONNX Runtime on the CPU, else with torch.compile."""
        found = host_arrays(self._torch, programs[OURS]())
        try:
            outputs = ReferenceSession(path).run(arrays)
            wanted, who = [np.asarray(v, np.float32) for v in outputs.values()], "ONNX Runtime"
        except ReferenceUnavailableError as error:
            if "torch.compile" not in programs:
                result.reasons["comparison"] = str(error)
                return
            wanted, who = host_arrays(self._torch, programs["torch.compile"]()), "torch.compile"
        result.compare(found, wanted, who, _MODEL_TOLERANCE)

    def _measured(self, result: Result, measure: Callable[[dict[str, Program]], None]) -> Result:
        """Prepares and compares by ``measure``, then times what that has found."""
        programs: dict[str, Program] = {}
        if self._lost:
            result.reasons[OURS] = self._lost
            return result
        try:
            measure(programs)
            timed = self._watch.in_turn(list(programs.values()))
            for name, one in zip(programs, timed, strict=True):
                result.seconds[name], result.started[name] = one.seconds, one.started
        except _FAILURES as error:
            self._note(result, OURS, error)
        self._release(programs)
        return result

    def _prepare(
        self,
        result: Result,
        programs: dict[str, Program],
        name: str,
        offer: Callable[[], Program],
    ) -> None:
        """Adds a program, or the reason why it is missing."""
        try:
            programs[name] = offer()
        except _FAILURES as error:
            self._note(result, name, error)

    def _note(self, result: Result, name: str, error: Exception) -> None:
        line = str(error if isinstance(error, TvmExtError) else refusal("fails", error))
        result.reasons[name] = line
        try:
            self._torch.cuda.synchronize()
        except RuntimeError:
            self._lost = f"not measured: '{result.name}' took the process's CUDA context"
            result.reasons[name] = f"{line} (the process's CUDA context is lost)"

    def _release(self, programs: dict[str, Program]) -> None:
        ours = programs.get(OURS)
        programs.clear()
        if self._lost:
            return
        if isinstance(ours, CudaPeer):
            ours.release()
        self._torch.cuda.empty_cache()

    def _ours(self, model: Model, tensors: Mapping[str, Any]) -> Program:
        return CudaPeer(self._torch, model, tensors, self._settings.tf32)

    def _eager(self, case: Case, tensors: Sequence[Any]) -> Program:
        torch = self._torch

        def run() -> Any:
            with torch.inference_mode():
                return case.torch(torch, *tensors)

        run()
        return run
