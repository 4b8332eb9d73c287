"""tvm-ext itself, whole or with passes left out."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm

import tvm_ext
from peers.peer import Job, PeerError, Program
from tvm_ext.hardware.host import host_description
from tvm_ext.hardware.threads import use_threads
from tvm_ext.hardware.timing import Timer
from tvm_ext.model_inputs import check_inputs
from tvm_ext.program_call import to_array


@dataclass(frozen=True)
class Ours:
    """``CompiledModel.run``; of a kernel, the virtual machine's call on tensors that are there."""

    name: str = "tvm_ext"
    title: str = "tvm-ext"
    disabled_passes: tuple[str, ...] = ()

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
        use_threads(job.threads)
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
        use_threads(job.threads)
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
