"""A compiled model: runs, profiles, saves and explains itself."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from tvm_ext.artifact import (
    TargetRecord,
    export_library_bytes,
    read_artifact,
    write_artifact,
)
from tvm_ext.artifact.manifest import host_architecture
from tvm_ext.compiler.kernel_calls import KernelCall
from tvm_ext.configs.atomic_file import check_writable
from tvm_ext.device_buffers import InputBuffers, to_array
from tvm_ext.errors import RunError, TargetError, reason_of
from tvm_ext.failed_branch import register_failed_branch
from tvm_ext.hardware.description import CpuDescription, Processor
from tvm_ext.hardware.host import host_cpu_features
from tvm_ext.hardware.threads import use_threads
from tvm_ext.model_inputs import check_inputs
from tvm_ext.narrow_dtypes import release
from tvm_ext.profiling import Profile, profile_run
from tvm_ext.report.records import CompileReport
from tvm_ext.tensor_spec import TensorSpec


class CompiledModel:
    """What ``tvm_ext.compile`` and ``tvm_ext.load`` return.

    Attributes
    ----------
    inputs, outputs : tuple[TensorSpec, ...]
        Names (as in the ONNX model), dtypes and shapes.
    report : CompileReport
        What the compiler did: passes, refusals, kernels, schedules, memory.
    """

    def __init__(
        self,
        program: relax.VMExecutable | tvm.runtime.Module,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        target: TargetRecord,
        threads: int,
        report: CompileReport,
        library: bytes | None = None,
        to_save: relax.VMExecutable | None = None,
    ) -> None:
        self._program = program
        self._to_save = to_save if to_save is not None else program
        self._library = library
        self._target = target
        self._threads = threads
        self._machines = threading.local()
        # TVM writes the program's objects to link or to save them, and cannot in two threads.
        self._exporting = threading.Lock()
        self.inputs = inputs
        self.outputs = outputs
        self.report = report

    def run(self, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, np.ndarray]:
        """Runs the model once.

        Parameters
        ----------
        inputs : mapping of input name to array
            One array for each of ``self.inputs``, of its dtype and shape.

        Returns
        -------
        dict[str, np.ndarray]
            One array for each of ``self.outputs``, under its ONNX name.

        Raises
        ------
        InputError
            A name, dtype, rank or size does not fit.
        TargetError
            The model was compiled for a machine that this one is not.
        RunError
            The program failed while it ran, for example for want of memory.
        """
        arrays = check_inputs(self.inputs, inputs)
        machine, buffers = self._virtual_machine()
        use_threads(self._threads)
        with _run_errors():
            result = machine["main"](*buffers.filled(arrays))
        values = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        return {
            spec.name: release(to_array(value), spec.dtype)
            for spec, value in zip(self.outputs, values, strict=True)
        }

    def profile(self, inputs: Mapping[str, npt.ArrayLike], repeat: int = 10) -> Profile:
        """Time per kernel, with the ONNX nodes that each call computes.

        Parameters
        ----------
        inputs : mapping of input name to array
            As for ``run``.
        repeat : int
            Runs after a warm-up; the median of each call is reported.

        Raises
        ------
        InputError, TargetError, RunError
            As for ``run``.
        """
        arrays = check_inputs(self.inputs, inputs)
        # TVM cannot take a hook out again, so the machine that has it is not kept.
        machine, buffers = self._new_machine(), InputBuffers(self._device())
        use_threads(self._threads)
        with _run_errors():
            return profile_run(machine, buffers.filled(arrays), self.kernel_calls(), repeat)

    def save(self, path: str | Path) -> None:
        """Writes the model to one file, atomically; see ``tvm_ext.artifact`` for the format.

        Raises
        ------
        OutputPathError
            The path cannot be written.
        ArtifactError
            There is no C++ compiler to link the program.
        """
        check_writable(path)
        with self._exporting:
            if self._library is None:
                self._library = export_library_bytes(self._to_save)
        write_artifact(
            path,
            library=self._library,
            report_json=self.report.to_json(),
            model_name=self.report.model,
            inputs=self.inputs,
            outputs=self.outputs,
            target=self._target,
        )

    def kernel_calls(self) -> list[KernelCall]:
        """Every kernel call of a run with its original nodes, grouped by kernel."""
        return [
            KernelCall(kernel.name, tuple(origin.split(" + ")))
            for kernel in self.report.kernels
            for origin in kernel.origins
        ]

    def _virtual_machine(self) -> tuple[relax.VirtualMachine, InputBuffers]:
        """TVM's virtual machine with this program in it, and its inputs; made once a thread.

        A virtual machine has one stack of frames: two threads in the same one crash the process.
        """
        if not hasattr(self._machines, "machine"):
            self._machines.machine = self._new_machine()
            self._machines.buffers = InputBuffers(self._device())
        return self._machines.machine, self._machines.buffers

    def _new_machine(self) -> relax.VirtualMachine:
        self._require_this_machine()
        with self._exporting:
            if isinstance(self._program, relax.VMExecutable):
                self._program = self._program.jit()
        register_failed_branch()
        return relax.VirtualMachine(self._program, self._device())

    def _device(self) -> tvm.runtime.Device:
        return tvm.cuda() if self._target.kind == "cuda" else tvm.cpu()

    def _require_this_machine(self) -> None:
        if self._target.kind == "cuda":
            if not tvm.cuda().exist:
                raise TargetError(
                    f"the model was compiled for {self._target.name}, and no CUDA device was "
                    "found; expected one: run it on a machine with such a GPU"
                )
            return
        here = host_architecture()
        if self._target.machine != here:
            raise TargetError(
                f"the model was compiled for {self._target.machine} ({self._target.name}), this "
                f"machine is {here}: compile it for target 'cpu', or run it on such a machine"
            )
        missing = set(self._target.required_features) - host_cpu_features()
        if missing:
            raise TargetError(
                f"the model was compiled for {self._target.name}, and this CPU lacks "
                f"{', '.join(sorted(missing))}: compile it for target 'cpu'"
            )

    @classmethod
    def load(cls, path: str | Path) -> "CompiledModel":
        """Reads a file that ``save`` wrote, after checking all of it.

        Raises
        ------
        ArtifactError
            The file is damaged, newer, of another version of TVM, or for another machine.
        """
        artifact = read_artifact(path)
        manifest = artifact.manifest
        report = CompileReport.from_json(artifact.report_json)
        return cls(
            program=artifact.load_module(),
            inputs=tuple(manifest.inputs),
            outputs=tuple(manifest.outputs),
            target=manifest.target,
            threads=int(report.target.get("cores", 1)),
            report=report,
            library=artifact.library,
        )


@contextmanager
def _run_errors() -> Iterator[None]:
    """What TVM raises in a run, as our own error."""
    try:
        yield
    except (tvm.error.InternalError, RuntimeError, ValueError, TypeError, MemoryError) as error:
        raise RunError(
            f"the run failed in TVM ({reason_of(error)}); expected enough memory and values "
            "that the model's operators allow: check the inputs with tvm-ext check"
        ) from error


def target_record(machine: Processor) -> TargetRecord:
    """What a saved model says of the machine that it was compiled for."""
    if isinstance(machine, CpuDescription):
        return TargetRecord(
            name=machine.name,
            kind="cpu",
            mtriple=machine.mtriple,
            mcpu=machine.mcpu,
            required_features=machine.required_features,
            machine=machine.architecture,
        )
    return TargetRecord(name=machine.name, kind=machine.kind, mcpu=machine.arch)
