"""A compiled model on the device: one virtual machine for the whole process, run by run."""

import atexit
import ctypes
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from tvm_ext.cuda.device_errors import (
    context_is_lost,
    device_error,
    gpu,
    gpu_architecture,
    require_architecture,
    require_context,
    require_gpu,
)
from tvm_ext.cuda.tensors import (
    DeviceInputs,
    check_input,
    forget_last_error,
    has_unknown_stream,
    on_device,
    ordered_with_others,
)
from tvm_ext.errors import TvmExtError
from tvm_ext.hardware.cuda.device_code import making_device_code
from tvm_ext.hardware.cuda.host import LIBRARY, driver_state
from tvm_ext.hardware.cuda.runtime_library import keep_for_ever
from tvm_ext.model_inputs import check_inputs, release
from tvm_ext.profiling import MeasuredRun, profile_run
from tvm_ext.relay_passes.cuda_graphs import PLAIN_RUN, RUN_OR_CAPTURE
from tvm_ext.run_errors import TVM_ERRORS, register_failed_branch
from tvm_ext.tensor_spec import TensorSpec

# The device that CUDA's calls of a thread are for, in a machine with several.


@contextmanager
def current_device_kept() -> Iterator[None]:
    """The thread's current device is after the block what it was before.

    TVM makes its device current and leaves it so. PyTorch and others allocate on the current one.
    """
    if len(driver_state().devices) < 2:
        yield
        return
    # CUDA Driver API, "Context Management": the current device of CUDA's runtime is that of the
    # thread's context.
    driver = ctypes.CDLL(LIBRARY)
    before = ctypes.c_void_p()
    driver.cuCtxGetCurrent(ctypes.byref(before))
    try:
        yield
    finally:
        if before.value:
            driver.cuCtxSetCurrent(before)


# Results of operators that the host computes (NonZero, Unique) on the device of their input.
#
# TVM's functions copy the input to the host, call NumPy, and leave the result there: a kernel
# that goes on with it would be handed memory of the host.


HOST_FUNCTIONS = ("relax.run.nonzero", "relax.run.unique")

_wrapped: dict[str, Callable[..., Any]] = {}


def register_host_results() -> None:
    """Puts functions in the place of TVM's that give results where the input is, once."""
    for name in HOST_FUNCTIONS:
        own = tvm.get_global_func(name, allow_missing=True)
        if own is not None and name not in _wrapped:
            _wrapped[name] = beside_input(own)
            tvm.register_global_func(name, _wrapped[name], override=True)


def beside_input(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of a tensor and options, with results on the tensor's device."""

    def call(x: Any, *options: Any) -> Any:
        found = function(x, *options)
        if x.device == tvm.cpu(0):
            return found
        if isinstance(found, tvm.runtime.Tensor):
            return tvm.runtime.tensor(found.numpy(), x.device)
        return [tvm.runtime.tensor(one.numpy(), x.device) for one in found]

    return call


# Runs of programs with CUDA graphs that launch every kernel by itself, so that each can be timed.
#
# A virtual machine looks its built-in functions up by name when it is made. One that is made
# while another function has the name of "run or capture" calls that one ever after.


@contextmanager
def without_graphs() -> Iterator[None]:
    """Virtual machines made inside of this block never record or launch a graph."""
    own = tvm.get_global_func(RUN_OR_CAPTURE, allow_missing=True)
    tvm.register_global_func(RUN_OR_CAPTURE, _run, override=True)
    try:
        yield
    finally:
        if own is not None:
            tvm.register_global_func(RUN_OR_CAPTURE, own, override=True)


def register_plain_run() -> None:
    """Makes the function known to virtual machines under ``PLAIN_RUN``."""
    tvm.register_global_func(PLAIN_RUN, _run, override=True)


def _run(machine: Any, function: Any, arguments: Any, *rest: Any) -> Any:
    """Calls what would be captured; ``rest`` names the graph."""
    return tvm.get_global_func("vm.builtin.invoke_closure")(machine, function, *arguments)


# One run at a time in a process. A virtual machine has one stack of frames; and while one thread
# records a CUDA graph, what another does on the default stream would end the recording.
_one_at_a_time = threading.RLock()


@dataclass(frozen=True)
class DeviceCode:
    """The code of one model.

    Attributes
    ----------
    open_module : callable
        Returns the program's module; called after the checks of the device.
    target : str
        Name of the target, for messages.
    arch, form : str
        What the device code was made for, and what it is: see ``architecture.CodeForm``.
    """

    open_module: Callable[[], tvm.runtime.Module]
    target: str
    arch: str
    form: str

    def require_device(self) -> None:
        """Checks that this machine's GPU runs it; raises TargetError or RunError."""
        require_gpu(self.target)
        require_architecture(self.target, self.arch, self.form)

    def opened(self) -> tvm.runtime.Module:
        """The module; source in it is compiled for the very GPU."""
        # What is written for one generation stays there, other source suits later ones too.
        same = self.arch[-1:].isalpha()
        with making_device_code(self.arch if same else gpu_architecture()):
            return self.open_module()


class CudaProgram:
    """One model on one GPU.

    The weights are copied to the device when the virtual machine is made, at the first run, and all
    threads share it.

    Parameters
    ----------
    code : DeviceCode
        Its program.
    name, memory : str
        The model's name and what memory it takes, for messages.
    inputs, outputs : sequence of TensorSpec
        Those of the model.
    copies : bool
        Whether outputs that stay on the device are copied, of which it is not known whose memory
        they are.
    """

    def __init__(
        self,
        code: DeviceCode,
        name: str,
        memory: str,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        copies: bool = False,
    ) -> None:
        self._code = code
        self._name = name
        self._memory = memory
        self._input_specs = inputs
        self._output_specs = outputs
        self._copies = copies
        self._machine: relax.VirtualMachine | None = None
        self._inputs: DeviceInputs | None = None
        _programs.add(self)

    def run(self, inputs: Mapping[str, Any], stay: bool | None) -> dict[str, Any]:
        """Runs once; see ``CompiledModel.run``. ``stay`` is its ``on_device``."""
        values = self._checked(inputs)
        if stay is None:
            stay = any(on_device(value) for value in inputs.values())
        device = gpu()
        with _one_at_a_time, current_device_kept(), self._errors():
            machine, buffers = self.made()
            with ordered_with_others(device):
                result = machine["main"](*buffers.filled(values))
                tensors = _tensors(result)
                if stay and self._copies:
                    tensors = [tensor.copyto(device) for tensor in tensors]
                if not stay:
                    arrays = [tensor.numpy() for tensor in tensors]
                    buffers.finished()
                elif any(map(has_unknown_stream, inputs.values())):
                    device.sync()
        if stay:
            return self._named(tensors)
        named = self._named(arrays)
        return {spec.name: release(named[spec.name], spec.dtype) for spec in self._output_specs}

    def profile(
        self, inputs: Mapping[str, Any], kernels: Collection[str], repeat: int
    ) -> MeasuredRun:
        """Time per kernel, without CUDA graphs, and of a whole run as it is."""
        values = self._checked(inputs)
        device = gpu()
        with _one_at_a_time, current_device_kept(), self._errors():
            machine, buffers = self.made()
            with without_graphs():
                watched = relax.VirtualMachine(self._code.opened(), device)
            with ordered_with_others(device):
                tensors = buffers.filled(values)
                return profile_run(machine, tensors, kernels, repeat, watched, device.sync)

    def release_memory(self) -> None:
        """Gives the device's memory back; the next run takes it again."""
        with _one_at_a_time, current_device_kept():
            self._machine = self._inputs = None
            _clear_pool()

    def _checked(self, inputs: Mapping[str, Any]) -> list[Any]:
        # First: tensors of a device cannot be read where there is none.
        self._code.require_device()
        return check_inputs(self._input_specs, inputs, check_input)

    def made(self) -> tuple[relax.VirtualMachine, DeviceInputs]:
        """The virtual machine and the memory of inputs; made at the first call."""
        require_context()
        if self._machine is None or self._inputs is None:
            register_failed_branch()
            register_plain_run()
            register_host_results()
            device = gpu()
            self._machine = relax.VirtualMachine(self._code.opened(), device)
            self._inputs = DeviceInputs(device)
        return self._machine, self._inputs

    def _named(self, values: Sequence[Any]) -> dict[str, Any]:
        pairs = zip(self._output_specs, values, strict=True)
        return {spec.name: value for spec, value in pairs}

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What TVM raises, as our own error; after it the device is as usable as it can be."""
        try:
            yield
        except TvmExtError:
            raise
        except TVM_ERRORS as error:
            forget_last_error()
            found = device_error(error, self._name, _still_works, self._memory)
            if context_is_lost():
                _abandon_all()
            else:
                # Whatever memory the failed run took goes back before the next one.
                self._machine = self._inputs = None
                _clear_pool()
            raise found from error


_programs: "weakref.WeakSet[CudaProgram]" = weakref.WeakSet()


def _tensors(result: Any) -> list[tvm.runtime.Tensor]:
    return [result] if isinstance(result, tvm.runtime.Tensor) else list(result)


def _still_works() -> bool:
    try:
        gpu().sync()
    except TVM_ERRORS:
        return False
    return True


def _clear_pool() -> None:
    """Memory that nobody uses goes back to the device, for other programs as well."""
    clear = tvm.get_global_func("vm.builtin.memory_manager.clear", allow_missing=True)
    if clear is not None:
        clear()


def _abandon_all() -> None:
    """Freeing anything on a device without a context would end the process."""
    for program in list(_programs):
        keep_for_ever(program._machine, program._inputs)
        program._machine = program._inputs = None


@atexit.register
def _release_all() -> None:
    # While CUDA is still there: destroying a graph after it raises in a destructor.
    if context_is_lost():
        return
    for program in list(_programs):
        program.release_memory()
