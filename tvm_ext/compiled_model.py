"""A compiled model: runs, profiles, saves and explains itself."""

import math
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm_ffi

from tvm_ext.artifact import LoadedArtifact, TargetRecord, write_artifact
from tvm_ext.artifact.library import LibraryFile, ProgramModule
from tvm_ext.artifact.manifest import SpecializedRecord, host_architecture
from tvm_ext.check.inputs import zeros_to_run
from tvm_ext.configs.atomic_file import check_new_folder, check_writable
from tvm_ext.errors import ArtifactError, InputError, RunError, TargetError, TvmExtError
from tvm_ext.hardware.cpu.system import host_cpu_features, usable_cores
from tvm_ext.hardware.cpu.threads import running_on, thread_pool
from tvm_ext.io_binding import (
    IOBinding,
    checked_out,
    copy_into,
    require_in_place,
    with_new_arrays,
    written_directly,
)
from tvm_ext.model_inputs import (
    HOLDERS,
    ContradictingSizesError,
    ContradictingSizesWarning,
    check_inputs,
    fit_shapes,
    release,
    require_no_device,
    shapes_named_apart,
)
from tvm_ext.program_call import LARGE_RESULT_BYTES, ProgramCall, memory_tensor, to_array
from tvm_ext.report.compile_report import CompileReport
from tvm_ext.report.records import (
    RELEASE_RESULTS,
    WITH_OUT_PARAMS,
    KernelCall,
    as_machine_code,
    specialized_name,
)
from tvm_ext.report.units import format_bytes
from tvm_ext.run_errors import TVM_ERRORS, failing_node, register_failed_branch, run_error
from tvm_ext.runner import MicroBatches, Runner, Share
from tvm_ext.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from tvm import relax

    from tvm_ext.compiler.specialize import FrequentSizes
    from tvm_ext.cuda.program import CudaProgram
    from tvm_ext.profiling import MeasuredRun, ProfiledMachine
    from tvm_ext.report.profile import Profile
    from tvm_ext.session import Session


# For how many shapes of inputs it is known which program runs.
_CHOICES_KEPT = 1 << 12

# Of all types of elements, so that no type has to be known for what is small.
_WIDEST_ELEMENT = 8

# A program is run twice ahead of its first run if the first of them takes less.
_QUICK_SECONDS = 0.02


class CompiledModel:
    """A model that can be run: ``tvm_ext.compile`` and ``tvm_ext.load`` return it.

    Attributes
    ----------
    inputs, outputs : tuple[TensorSpec, ...]
        The name (as in the ONNX model), dtype and shape of each input and output.
    report : CompileReport
        What the compiler did: passes, refusals, kernels, schedules and memory.
    specialized : tuple[CompiledModel, ...]
        The programs of this model for exact sizes (``compile(specialize=...)``). A run takes the
        first of them that fits its inputs.
    """

    # Compiles the model again for other shapes of inputs; None for a program from a file.
    compile_again: Callable[[dict[str, list[int | str]]], "CompiledModel"] | None = None
    # Compiles the model for a session: the program that keeps these states (positions of input and
    # output, and the axis) in its inputs' own memory, and computes of these outputs (position and
    # axis) the last position only.
    compile_session: (
        Callable[[tuple[tuple[int, int, int], ...], tuple[tuple[int, int], ...]], "CompiledModel"]
        | None
    ) = None
    # Has programs built for sizes that come often (``specialize="auto"``).
    frequent_sizes: "FrequentSizes | None" = None
    specialized: "tuple[CompiledModel, ...]" = ()
    _has_program = True
    _named_apart: "CompiledModel | None" = None
    # The report, or what reads it again; and of it what runs look at.
    _report: CompileReport | None = None
    _read_report: Callable[[], CompileReport] | None = None
    _for_runs: CompileReport

    def __init__(
        self,
        program: "relax.VMExecutable | bytes | LibraryFile | ProgramModule",
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        target: TargetRecord,
        threads: int,
        report: CompileReport,
        specialized: Sequence[tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]] = (),
        number: int = 0,
    ) -> None:
        weights = [one.memory.weights_bytes for one in (report, *report.specialized)]
        if not isinstance(program, ProgramModule):
            program = ProgramModule(program, sum(weights))
        self._program = program
        self._number = number
        self._target = target
        self._threads = min(threads, usable_cores())
        self._threads_own = threading.local()
        self.inputs = inputs
        self.outputs = outputs
        self._input_names = [spec.name for spec in inputs]
        self._output_names = [spec.name for spec in outputs]
        copied = report.memory.copied_outputs
        self._copied = [copied is None or name in copied for name in self._output_names]
        self._any_copied = any(self._copied)
        self._narrow_outputs = [spec for spec in outputs if spec.dtype in HOLDERS]
        self.report = report
        names = report.memory.out_params
        self._out_params = [self._output_names.index(name) for name in names]
        self._gpu = self._cuda_program() if target.kind == "cuda" else None
        # The inputs and outputs of each of these are in ``specialized``.
        self.specialized = tuple(
            CompiledModel(self._program, *specs, target, threads, one, number=place)
            for place, (specs, one) in enumerate(
                zip(specialized, report.specialized, strict=True), 1
            )
        )
        self._chosen: dict[tuple[Any, ...], CompiledModel] = {}
        self._micro_batches: MicroBatches | None = None
        cut, specs = report.micro_batch, (inputs, outputs)
        if cut is not None and not self._narrow_outputs and MicroBatches.are_known(*specs):
            self._micro_batches = MicroBatches(cut, *specs, self._out_params, self._made)

    @property
    def report(self) -> CompileReport:
        """What the compiler did. A loaded model reads it when it is asked for the first time."""
        if self._report is None:
            self._report = self._for_runs if self._read_report is None else self._read_report()
        return self._report

    @report.setter
    def report(self, report: CompileReport) -> None:
        self._report = self._for_runs = report

    def _put_report_away(self, read_report: Callable[[], CompileReport]) -> None:
        """Keeps of the report what runs look at: the rest takes as much memory as a small model."""
        self._for_runs = self.report.for_runs
        self._report, self._read_report = None, read_report
        for number, one in enumerate(self.specialized):
            one._put_report_away(partial(self._report_of_specialized, number))

    def _report_of_specialized(self, number: int) -> CompileReport:
        return self.report.specialized[number]

    def __repr__(self) -> str:
        report = self.report
        tensors = f"{', '.join(report.inputs)} -> {', '.join(report.outputs)}"
        return f"<CompiledModel {report.model} for {report.target['name']}: {tensors}>"

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        out: Mapping[str, Any] | None = None,
        on_device: bool | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Runs the model once.

        Parameters
        ----------
        inputs : mapping of input name to array
            One array for each of ``self.inputs``, with its dtype and shape. A model for a CPU reads
            large NumPy arrays and host tensors (objects with ``__array__`` or ``__dlpack__``) in
            place. A model for a GPU also takes tensors on the device (objects with ``__dlpack__``,
            such as those of PyTorch, CuPy, JAX and TVM) and reads them in place.
        out : mapping of output name to array, optional
            Host arrays to which these outputs are written, with the dtype and shape of the output.
            Outputs that are not named here are returned in new memory. A program for a CPU writes
            to the arrays directly. It copies instead where an array overlaps with an input or has
            gaps, where the output is also an input, or where the run decides the output's size.
        on_device : bool, optional
            For a GPU: whether the outputs stay on the device, as ``tvm.runtime.Tensor`` objects,
            which ``torch.from_dlpack`` and similar functions take without a copy. By default they
            do if an input was on the device. Later runs do not change these tensors. With tensors
            of PyTorch and CuPy, the call returns before the device is done, and the run keeps its
            order with other work on their current streams. With tensors of other libraries, the
            call waits for the device. Elements of types smaller than a byte take a byte each.
        threads : int, optional
            For a CPU: the number of threads of this run. The default is the number that the model
            was compiled or loaded for.

        Returns
        -------
        dict[str, np.ndarray]
            One array for each of ``self.outputs``, by its ONNX name. It is the array of ``out`` for
            the outputs that are named there.

        Raises
        ------
        InputError
            The name, dtype, rank or size of an input, or of an array in ``out``, does not fit.
        TargetError
            The model was compiled for another machine, ``threads`` is below 1, or ``threads`` was
            given for a GPU.
        RunError
            The program failed while it ran, for example because memory ran out.
        ArtifactError
            There is no compiler to link a program for a GPU, which its first run needs.

        Notes
        -----
        Several dimensions can share a name, and inputs can give them different sizes nevertheless.
        The model is then compiled once more, with a warning, and both programs are kept. A model
        that was loaded from a file refuses such inputs.
        """
        if threads is not None:
            with running_on(self._checked_threads(threads)):
                return self.run(inputs, out=out, on_device=on_device)
        if self.frequent_sizes is not None and self._shares(inputs) is None:
            self.frequent_sizes.count(inputs)
        try:
            if self.specialized and (chosen := self.chosen_for(inputs)) is not self:
                return chosen.run(inputs, out=out, on_device=on_device)
            if out is not None:
                return self._results_in(inputs, out, on_device)
            return self._results(inputs, on_device)
        except ContradictingSizesError as contradiction:
            with self._taken_apart(inputs, contradiction) as apart:
                return apart.run(inputs, out=out, on_device=on_device)

    def chosen_for(self, inputs: Mapping[str, Any]) -> "CompiledModel":
        """Returns the first of ``specialized`` that fits these inputs, or else the model itself."""
        if not self.specialized or not isinstance(inputs, Mapping):
            return self
        shapes = tuple([getattr(inputs.get(name), "shape", None) for name in self._input_names])
        # Ahead of ``specialized``: what another thread replaces them with is chosen anew.
        known = self._chosen
        try:
            return known[shapes]
        except (KeyError, TypeError):
            fitting = (one for one in self.specialized if fit_shapes(one.inputs, shapes))
            chosen = next(fitting, self)
        if len(known) < _CHOICES_KEPT:
            with suppress(TypeError):
                known[shapes] = chosen
        return chosen

    def wait_for_specialized(self, timeout: float | None = None) -> bool:
        """Waits for the programs that ``compile(specialize="auto")`` builds while the model runs.

        Parameters
        ----------
        timeout : float, optional
            The longest time to wait, in seconds. Without it there is no limit.

        Returns
        -------
        bool
            Whether all programs are built; False if the time ran out.
        """
        return self.frequent_sizes is None or self.frequent_sizes.wait(timeout)

    def replace_program(self, other: "CompiledModel") -> None:
        """Goes on with the program of another compilation of this model, from the next run on."""
        self._program, self.report = other._program, other.report
        self.specialized, self._chosen = other.specialized, {}
        self._threads_own = threading.local()

    def _results_in(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any], on_device: bool | None
    ) -> dict[str, Any]:
        """The results, those in ``out`` written there."""
        if on_device:
            raise InputError(
                "out and on_device are both given, and out is memory of the host; expected one of "
                "them: leave one out"
            )
        sizes: dict[str, int] = {}
        arrays = check_inputs(self.inputs, inputs, sizes=sizes) if self._out_params else []
        given = checked_out(self.outputs, out, sizes)
        written = written_directly(self.outputs, self._out_params, given, arrays, sizes)
        if not written:
            results = self._results(inputs, False if self._gpu is not None else None)
        elif self._micro_batches is not None and (shares := self._shares(inputs)) is not None:
            names = (self._output_names[place] for place in self._out_params)
            known = dict(zip(names, written, strict=True))
            results = with_new_arrays(self.outputs, known, sizes)
            self._micro_batches.run(shares, arrays, results)
        else:
            call = self._made()
            tensors = [memory_tensor(array) for array in written]
            results = self._named(call.write(call.filled(arrays), tensors))
            names = (self._output_names[place] for place in self._out_params)
            results.update(zip(names, written, strict=True))
        for name, array in given.items():
            if results[name] is not array:
                copy_into(name, array, results[name])
        return {**results, **{name: out[name] for name in given}}

    def _results(self, inputs: Mapping[str, Any], on_device: bool | None) -> dict[str, Any]:
        if self._gpu is not None:
            return self._gpu.run(inputs, on_device)
        if on_device:
            require_no_device(on_device)
        if self._micro_batches is not None and (shares := self._shares(inputs)) is not None:
            sizes: dict[str, int] = {}
            arrays = check_inputs(self.inputs, inputs, sizes=sizes)
            results = with_new_arrays(self.outputs, {}, sizes)
            self._micro_batches.run(shares, arrays, results)
            return results
        call = self._made()
        names = self._input_names
        found = None
        if type(inputs) is dict and len(inputs) == len(names):
            found = call.like_last(list(map(inputs.get, names)))
        if found is None:
            found = call(check_inputs(self.inputs, inputs))
        return self._named(found)

    def run_in_place(
        self,
        inputs: Mapping[str, Any],
        state: Mapping[str, tvm_ffi.Tensor],
        threads: int | None = None,
    ) -> dict[str, np.ndarray]:
        """One run of a session's program, which reads and writes ``state`` where it is.

        The session sees to it that these tensors fit; ``inputs``, the other ones, are checked.
        """
        if threads is not None:
            with running_on(self._checked_threads(threads)):
                return self.run_in_place(inputs, state)
        given = [spec for spec in self.inputs if spec.name not in state]
        arrays = iter(check_inputs(given, inputs))
        names = self._input_names
        tensors = [state[name] if name in state else next(arrays) for name in names]
        return self._named(self._made()(tensors))

    def _shares(self, inputs: Mapping[str, Any]) -> tuple[Share, ...] | None:
        """How a run of these inputs is cut into micro-batches; None where it is not."""
        if self._micro_batches is None or not isinstance(inputs, Mapping):
            return None
        return self._micro_batches.shares(inputs, thread_pool.count_for(self._threads))

    def _named(self, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name, those in memory of something else as copies."""
        if self._any_copied:
            arrays = [
                array.copy() if copied else array
                for array, copied in zip(arrays, self._copied, strict=True)
            ]
        results = dict(zip(self._output_names, arrays, strict=True))
        for spec in self._narrow_outputs:
            results[spec.name] = release(results[spec.name], spec.dtype)
        return results

    def is_fresh(self, output: str) -> bool:
        """Whether an output is made anew in each run, in memory that is nothing else's."""
        return not self._copied[self._output_names.index(output)]

    def io_binding(
        self, inputs: Mapping[str, np.ndarray], out: Mapping[str, Any] | None = None
    ) -> IOBinding:
        """Binds arrays that many runs read and write, so that these runs check and copy nothing.

        Parameters
        ----------
        inputs : mapping of input name to array
            NumPy arrays without gaps, with the dtypes and shapes of the inputs. Each run reads
            what they hold at that time.
        out : mapping of output name to array, optional
            Arrays for the results, as for ``run``. New arrays are made for outputs that are not
            named here.

        Returns
        -------
        IOBinding
            Its ``run()`` runs the model, and its ``out`` holds the results.

        Raises
        ------
        InputError
            An array does not fit, an input has gaps, or ``out`` lacks an output whose size is not
            known before the run.
        TargetError
            The model is for a GPU, for another machine, or has steps on the host.
        """
        if self._gpu is not None or not self._has_program:
            raise TargetError(
                "arrays cannot be bound to this model, which is for a GPU or has steps on the "
                "host; expected a program for a CPU: use run"
            )
        if (chosen := self.chosen_for(inputs)) is not self:
            return chosen.io_binding(inputs, out)
        sizes: dict[str, int] = {}
        arrays = check_inputs(self.inputs, inputs, sizes=sizes)
        bound = dict(zip(self._input_names, arrays, strict=True))
        for name, array in bound.items():
            require_in_place(name, inputs[name], array)
        given = with_new_arrays(self.outputs, checked_out(self.outputs, out or {}, sizes), sizes)
        written = written_directly(self.outputs, self._out_params, given, arrays, sizes)
        shares = self._shares(bound) if written else None
        in_parts = None
        if self._micro_batches is not None and shares is not None:
            in_parts = partial(self._micro_batches.run, shares, arrays, given)
        return IOBinding(self, bound, given, written or (), self._made, in_parts)

    def runner(self, streams: int | None = None) -> Runner:
        """Makes a runner that runs the model several times at once.

        More runs complete in a second than one after the other, and each run takes a little longer.

        Parameters
        ----------
        streams : int, optional
            The number of runs at the same time. The default is one for each thread of the model.
            The runs share the model's threads evenly.

        Returns
        -------
        Runner
            Its ``submit(inputs)`` returns a future of the outputs. Close the runner after use, or
            use it in a ``with`` statement.

        Raises
        ------
        TargetError
            ``streams`` is below 1, or the model is for a GPU, whose runs queue on the device.
        """
        threads = self._checked_threads(self._threads)
        count = threads if streams is None else streams
        if count < 1:
            raise TargetError(f"{count} streams were asked for; expected 1 or more")
        return Runner(self.run, count, max(1, threads // count))

    def session(
        self,
        capacity: int = 2048,
        *,
        batch: int | None = None,
        states: Mapping[str, str] | None = None,
        last_position: Sequence[str] = (),
    ) -> "Session":
        """Makes a session, which keeps the model's state from run to run.

        The state is the outputs that are inputs of the next run: keys and values of earlier tokens,
        or the hidden values of a model for streams. They are found by their names, types and shapes
        (``past_key_values.0.key`` and ``present.0.key``, ``h`` and ``hn``).

        Parameters
        ----------
        capacity : int
            How many rows (tokens) the states that grow can hold.
        batch : int, optional
            The size of the batch. Without it the first run decides.
        states : mapping of output name to input name, optional
            The pairs, for a model whose names say nothing.
        last_position : sequence of output names
            Outputs of shape (batch, length, ...) of which only the last position is wanted, such as
            the logits behind a prompt. They have length 1, and are computed for that position alone
            where the model allows it.

        Returns
        -------
        Session
            Its ``run`` takes the inputs that are no state, and returns the outputs that are none.

        Raises
        ------
        InputError
            The model has no state, a pair of ``states`` does not fit, or ``last_position`` names
            what is no such output.
        """
        # Most models have no state.
        from tvm_ext.session import Session

        return Session(self, capacity, batch=batch, states=states, last_position=last_position)

    def as_function(
        self, inputs: Sequence[str], outputs: Sequence[str]
    ) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Returns the model as a function that takes and returns sequences of arrays.

        It suits a model that is a part of a larger program, because a call builds no dictionary of
        inputs and makes no copies. An array that it returns may be a weight, or memory that the
        next call writes to.

        Parameters
        ----------
        inputs, outputs : sequence of str
            Names of all inputs and of the wanted outputs, in the order of the function's arguments
            and results.
        """

        def by_name(values: Sequence[Any]) -> Sequence[Any]:
            found = self.run(dict(zip(inputs, values, strict=True)))
            return [found[name] for name in outputs]

        in_order = list(inputs) == self._input_names and list(outputs) == self._output_names
        if self._gpu is not None or self._narrow_outputs or self.specialized or not in_order:
            return by_name

        def in_their_order(values: Sequence[Any]) -> Sequence[Any]:
            arrays = self._made().like_last(values)
            return by_name(values) if arrays is None else arrays

        return in_their_order

    def profile(
        self, inputs: Mapping[str, Any], repeat: int = 10, *, measure_peaks: bool = False
    ) -> "Profile":
        """Measures the time of each kernel and ONNX node, and compares it with the cost model's.

        Parameters
        ----------
        inputs : mapping of input name to array
            As for ``run``.
        repeat : int
            Number of runs after a warm-up. There are as many with a hook around each call of a
            kernel as without it, and medians are reported. On a GPU, the hook launches the kernels
            of CUDA graphs one by one, and the host waits for each.
        measure_peaks : bool
            For a CPU: whether the peak operations and bytes a second are measured after the runs,
            which takes some seconds. Otherwise rates are compared with the peaks of the target's
            description, which are estimates for the target "cpu".

        Returns
        -------
        Profile
            The times, which ``save_html`` and ``save_trace`` write to files. It also says which
            versions of kernels ran, and which program of a specialised model.

        Raises
        ------
        InputError, TargetError, RunError
            As for ``run``. TargetError is also raised for ``measure_peaks`` on a GPU.
        """
        if (chosen := self.chosen_for(inputs)) is not self:
            found = chosen.profile(inputs, repeat, measure_peaks=measure_peaks)
            return replace(found, program=f"for exact sizes: {', '.join(chosen.report.inputs)}")
        # Models of machines, which runs do without, bring TVM's compiler.
        from tvm_ext.profiling import ProfiledMachine

        machine = ProfiledMachine(self.report, self._threads, measure_peaks)
        try:
            return self._profiled(inputs, repeat, machine)
        except ContradictingSizesError as contradiction:
            with self._taken_apart(inputs, contradiction) as apart:
                return apart._profiled(inputs, repeat, machine)

    def _profiled(
        self, inputs: Mapping[str, Any], repeat: int, machine: "ProfiledMachine"
    ) -> "Profile":
        from tvm_ext.profiling import call_times, profile_facts
        from tvm_ext.report.profile import Profile

        measured = self._measured(inputs, repeat)
        return Profile(
            **profile_facts(self.report, self.inputs, inputs),
            repeat=max(1, repeat),
            run_microseconds=1e6 * measured.seconds,
            calls=call_times(measured, self.report, machine),
            traced_microseconds=1e6 * measured.lasted,
            peaks=machine.summary(),
            program="for any sizes" if self.specialized else "",
        )

    def _measured(self, inputs: Mapping[str, Any], repeat: int) -> "MeasuredRun":
        from tvm_ext.profiling import profile_run

        names = frozenset(record.name for record in self.report.kernels)
        if self._gpu is not None:
            return self._gpu.profile(inputs, names, repeat)
        arrays = check_inputs(self.inputs, inputs)
        # TVM cannot take a hook out again, so the machine that has it is not kept.
        machine = self._new_machine()
        tensors = self._made().filled(arrays)
        thread_pool.use_threads(self._threads)
        try:
            return profile_run(machine, tensors, names, repeat, function=self._function("main"))
        except TVM_ERRORS as error:
            raise self._run_error(error, tensors) from error

    def save(self, path: str | Path) -> None:
        """Writes the model to one file, which is replaced whole or not at all.

        ``tvm_ext.artifact`` describes the format.

        Parameters
        ----------
        path : str or Path
            The file to write, usually with the ending ``.tvmx``.

        Raises
        ------
        OutputPathError
            The path cannot be written.
        ArtifactError
            There is no compiler to link the program.
        """
        check_writable(path)
        write_artifact(
            path,
            library=self._program.library(),
            report_json=self.report.to_json(),
            model_name=self.report.model,
            inputs=self.inputs,
            outputs=self.outputs,
            target=self._target,
            specialized=[
                SpecializedRecord(inputs=one.inputs, outputs=one.outputs)
                for one in self.specialized
            ],
        )

    def export_library(
        self, folder: str | Path, *, name: str | None = None, threads: int | None = None
    ) -> list[Path]:
        """Writes a folder with which programs in C and C++ run the model, without Python.

        The folder holds a library with the program and its weights, a header that describes the
        inputs and outputs, sources that run the library with TVM's runtime, an example, and a CMake
        file that builds the example.

        Parameters
        ----------
        folder : str or Path
            The folder to write. It must be new or empty.
        name : str, optional
            Name of the library and of the header. The default is the name of the model's file.
        threads : int, optional
            The largest number of threads of a run, for programs that do not set one. The default
            is the number that the model was compiled for.

        Returns
        -------
        list[Path]
            The files that were written, the library first.

        Raises
        ------
        ArtifactError
            The model is for a GPU, has steps on the host, calls Python, or cannot be linked.
        TargetError
            ``threads`` is below 1.
        OutputPathError
            The folder is not empty, or cannot be written.
        """
        from tvm_ext.export.library_folder import write_library_folder

        if self._gpu is not None or not self._has_program:
            raise ArtifactError(
                f"cannot export {self.report.model_name}: it is for a GPU or has steps on the "
                "host; expected a program for a CPU: save it as .tvmx and run it in Python"
            )
        check_new_folder(folder)
        cores = int(self.report.target.get("cores", 1))
        most = cores if threads is None else self._checked_threads(threads)
        program = (self._program.library(), self.inputs, self.outputs, self._target, self.report)
        return write_library_folder(folder, name, *program, most)

    @property
    def threads(self) -> int:
        """Threads of a run that is given no other number."""
        return self._threads

    @property
    def gpu_program(self) -> "CudaProgram":
        """The program on the device, for measurements; raises TargetError for a CPU's model."""
        if self._gpu is None:
            raise TargetError(
                f"the model was compiled for {self._target.name}; expected one for a GPU: compile "
                "it for target 'cuda'"
            )
        return self._gpu

    def kernel_calls(self) -> list[KernelCall]:
        """Every kernel call of a run with its original nodes, grouped by kernel."""
        return [
            KernelCall(kernel.name, tuple(origin.split(" + ")))
            for kernel in self.report.kernels
            for origin in kernel.origins
        ]

    def link(self) -> None:
        """Links and loads the program, which ``compile`` and ``load`` do ahead of the first run.

        A model for a GPU or for another machine than this is left as it is: it is linked when it is
        saved or first run.

        Raises
        ------
        ArtifactError
            There is no compiler to link the program, or the system refuses the library.
        """
        if self._runs_here():
            self._made()

    def table_bytes(self) -> int | None:
        """What TVM makes of the program in memory beside weights and code; None before a link."""
        return self._program.table_bytes()

    def warm_up(self) -> bool:
        """Runs the program, so that the first run takes as long as the others.

        Code, weights and buffers are then where a run finds them. A quick program runs twice: the
        first time starts threads and reads from memory, and is longer by a half. The inputs are
        zeros of usual sizes (see ``zeros_to_run``); programs that may take a quarter of a second
        or more, and those that ``link`` leaves as they are, do not run. Returns whether it ran.
        """
        for one in self.specialized:
            one.warm_up()
        # Only a session knows how many rows a state in place has room for, and the program of one
        # of several devices waits for the others.
        if self._for_runs.state is not None or self._for_runs.sharding is not None:
            return False
        zeros = zeros_to_run(self.inputs, self.report) if self._runs_here() else None
        if zeros is None:
            return False
        with suppress(TvmExtError):
            begun = time.perf_counter()
            self._results(zeros, None)
            if time.perf_counter() - begun < _QUICK_SECONDS:
                self._results(zeros, None)
        return True

    def _runs_here(self) -> bool:
        elsewhere = self._gpu is not None or self._target.machine != host_architecture()
        return not elsewhere and not self._missing_features()

    @contextmanager
    def _taken_apart(
        self, inputs: Mapping[str, Any], contradiction: ContradictingSizesError
    ) -> Iterator["CompiledModel"]:
        """The program for these inputs; if none can run them, the contradiction was the fault."""
        try:
            if self._named_apart is None:
                if self.compile_again is None:
                    raise contradiction
                shapes = shapes_named_apart(self.inputs, inputs)
                warnings.warn(
                    f"{contradiction}: dimensions of one name with different sizes are taken for "
                    "different dimensions, and the model is compiled once more",
                    ContradictingSizesWarning,
                    stacklevel=4,
                )
                self._named_apart = self.compile_again(shapes)
            yield self._named_apart
        except TvmExtError as error:
            raise contradiction from error

    def _made(self) -> ProgramCall:
        """The program in a virtual machine of TVM, and its inputs; made once a thread.

        A virtual machine has one stack of frames: two threads in the same one crash the process.
        """
        made: ProgramCall | None = getattr(self._threads_own, "made", None)
        if made is None:
            machine = self._new_machine()
            made = ProgramCall(
                _fastest(machine, self._function("main")),
                len(self.outputs),
                self._threads,
                self._run_error,
                in_place=self._for_runs.memory.copied_outputs is not None,
                with_out_params=(
                    _fastest(machine, self._function(WITH_OUT_PARAMS)) if self._out_params else None
                ),
                release=self._release_of(machine),
            )
            self._threads_own.made = made
        return made

    def _release_of(self, machine: tvm_ffi.Module) -> Callable[[], Any] | None:
        """What lets go of results; None for small ones, and of a program without it."""
        are_small = sum(map(_most_bytes, self.outputs)) < LARGE_RESULT_BYTES
        if are_small or not machine.implements_function(RELEASE_RESULTS):
            return None
        return machine[RELEASE_RESULTS]

    def _function(self, name: str) -> str:
        """What a function of the program for any sizes is called in this one."""
        return specialized_name(name, self._number)

    def _new_machine(self) -> tvm_ffi.Module:
        self._require_this_machine()
        register_failed_branch()
        return self._program.new_machine()

    def _run_error(self, error: Exception, tensors: Sequence[tvm_ffi.Tensor]) -> RunError:
        """What TVM raised in a run of these inputs, as our own error."""
        if isinstance(error, RunError):
            return error
        arrays = [to_array(tensor) for tensor in tensors]
        machine, main = self._new_machine(), self._function("main")
        node = failing_node(machine, main, tensors, self.kernel_calls())
        return run_error(error, self.inputs, arrays, node)

    def _cuda_program(self) -> "CudaProgram":
        # Models for CPUs run without it.
        from tvm_ext.cuda.program import CudaProgram, DeviceCode

        record = self.report.device
        code = DeviceCode(
            self._program.opened,
            self._target.name,
            self._target.mcpu,
            record.code if record is not None else "source",
        )
        planned = self.report.memory.planned_peak_bytes
        buffers = format_bytes(planned) if planned is not None else "the run's sizes"
        memory = (
            f"{format_bytes(self.report.memory.weights_bytes)} of weights, {buffers} of buffers"
        )
        copies = self.report.memory.copied_outputs is None
        specs = (self.inputs, self.outputs)
        return CudaProgram(code, self.report.model_name, memory, *specs, copies=copies)

    def _checked_threads(self, threads: int) -> int:
        if self._target.kind == "cuda":
            raise TargetError(
                f"threads were given, and the model was compiled for {self._target.name}; "
                f"expected them only for a model for a CPU: leave the threads out"
            )
        if threads < 1:
            raise TargetError(f"{threads} threads were asked for; expected 1 or more")
        return threads

    def _require_this_machine(self) -> None:
        here = host_architecture()
        if self._target.machine != here:
            raise TargetError(
                f"the model was compiled for {self._target.machine} ({self._target.name}), this "
                f"machine is {here}: compile it for target 'cpu', or run it on such a machine"
            )
        missing = self._missing_features()
        if missing:
            raise TargetError(
                f"the model was compiled for {self._target.name}, and this CPU lacks "
                f"{', '.join(missing)}: compile it for target 'cpu'"
            )

    def _missing_features(self) -> list[str]:
        return sorted(set(self._target.required_features) - host_cpu_features())

    @classmethod
    def from_artifact(cls, artifact: LoadedArtifact, threads: int | None = None) -> "CompiledModel":
        """The model in a file that was read and checked, to run with so many threads.

        Raises
        ------
        ArtifactError
            The system refuses its library.
        """
        manifest = artifact.manifest
        report = CompileReport.from_json(artifact.report_json)
        loaded = cls(
            program=artifact.library,
            inputs=tuple(manifest.inputs),
            outputs=tuple(manifest.outputs),
            target=manifest.target,
            threads=int(report.target.get("cores", 1)),
            report=report,
            specialized=[(one.inputs, one.outputs) for one in manifest.specialized],
        )
        if threads is not None:
            for one in (loaded, *loaded.specialized):
                one._threads = one._checked_threads(threads)
        loaded.link()
        loaded.warm_up()
        # It is a tenth as long when it is compressed.
        packed = zlib.compress(artifact.report_json.encode())
        loaded._put_report_away(partial(_unpacked_report, packed))
        return loaded


def _unpacked_report(packed: bytes) -> CompileReport:
    return CompileReport.from_json(zlib.decompress(packed).decode())


def _most_bytes(spec: TensorSpec) -> float:
    """Bytes of an output, of no limit where a run decides its sizes."""
    sizes = [size if isinstance(size, int) else math.inf for size in spec.shape]
    return math.prod(sizes) * _WIDEST_ELEMENT


def _fastest(machine: tvm_ffi.Module, name: str) -> Callable[..., Any]:
    """A function of the program, as machine code where it has that."""
    symbol = as_machine_code(name)
    return machine[symbol if machine.implements_function(symbol) else name]
