"""Calls of a program on the CPU, without the cost of new tensors at every run.

TVM's own conversions take 15 and 6 microseconds a tensor, more than the kernels of a small model.
An input is copied into a tensor that is kept, through a NumPy view of its memory; one that is large
or has another shape than in the run before is read where it lies.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import tvm_ffi

from tvm_ext.errors import RunError
from tvm_ext.hardware.cpu.threads import thread_pool
from tvm_ext.run_errors import TVM_ERRORS

# Names of their own, which are found faster.
_Array, _Tensor = np.ndarray, tvm_ffi.Tensor
_view = np.from_dlpack
_field = tvm_ffi.get_global_func("ffi.ArrayGetItem")

# Smaller inputs are copied as fast as a tensor of their memory is made.
LARGE_INPUT_BYTES = 1 << 14

# It takes half a microsecond to let go of results, which is a part of a small model's run.
LARGE_RESULT_BYTES = 1 << 16

# Raised for tensors that NumPy cannot look at.
_NO_VIEW = (BufferError, RuntimeError, TypeError, ValueError, AttributeError)

# An input of the last run: how to read another one like it in place, unless it is too small for
# that; the tensor that it was copied into and a view of that, unless it was read in place; its
# shape and its dtype.
_LastInput: TypeAlias = tuple[
    Callable[[np.ndarray], tvm_ffi.Tensor | None] | None,
    tuple[tvm_ffi.Tensor, np.ndarray] | None,
    tuple[int, ...],
    np.dtype,
]


class ProgramCall:
    """One virtual machine's program and the tensors of its inputs; for one thread.

    Parameters
    ----------
    main : callable
        The program, from tensors to one tensor or an array of them.
    outputs : int
        How many it returns.
    threads : int
        How many run it.
    run_error : callable
        What to raise for an error of TVM in a run of these tensors.
    in_place : bool
        Whether inputs may be read where they lie: the program never writes to them.
    with_out_params : callable, optional
        The program with its results' memory as parameters behind the inputs.
    release : callable, optional
        Has the virtual machine let go of the results of its last call, which it keeps otherwise
        until the next one. It is called behind runs with large results.
    """

    def __init__(
        self,
        main: Callable[..., Any],
        outputs: int,
        threads: int,
        run_error: Callable[[Exception, Sequence[tvm_ffi.Tensor]], RunError],
        in_place: bool,
        with_out_params: Callable[..., Any] | None = None,
        release: Callable[[], Any] | None = None,
    ) -> None:
        self.main = main
        self._release = release
        self._with_out_params = with_out_params or main
        self._places = tuple(range(outputs))
        self._threads = threads
        self._run_error = run_error
        self._in_place = _in_place if in_place else _never
        # For each input of the last run.
        self._kept: dict[int, _LastInput] = {}

    def __call__(self, arrays: Sequence[np.ndarray | tvm_ffi.Tensor]) -> list[np.ndarray]:
        """The outputs for inputs that have been checked; their memory is the program's."""
        return self._outputs(self.filled(arrays))

    def like_last(self, values: Sequence[Any]) -> list[np.ndarray] | None:
        """The outputs; None where an input is not an array of exactly the kind of the last run's.

        That one has been checked; looking at each anew would take longer than a small model.
        """
        kept = self._kept
        if len(kept) != len(values):
            return None
        tensors = []
        for position, array in enumerate(values):
            in_place, copy, shape, dtype = kept[position]
            if type(array) is not _Array or array.shape != shape or array.dtype != dtype:
                return None
            tensor = None if in_place is None else in_place(array)
            if tensor is None:
                if copy is None:
                    return None
                tensor, view = copy
                view[...] = array
            tensors.append(tensor)
        return self._outputs(tensors)

    def filled(self, arrays: Sequence[np.ndarray | tvm_ffi.Tensor]) -> list[tvm_ffi.Tensor]:
        """One tensor an array, in order, with its values; valid until the next call.

        What is a tensor is taken as it is.
        """
        return [self._tensor(position, array) for position, array in enumerate(arrays)]

    def _tensor(self, position: int, array: np.ndarray | tvm_ffi.Tensor) -> tvm_ffi.Tensor:
        if isinstance(array, _Tensor):
            return array
        _, copy, shape, dtype = self._kept.get(position, (None, None, None, array.dtype))
        is_like_last = shape == array.shape and dtype == array.dtype
        in_place = None if array.nbytes < LARGE_INPUT_BYTES else self._in_place
        # What has another shape in each run, as the mask of a decoder, is read where it lies too.
        reader = in_place if is_like_last else self._in_place
        tensor = None if reader is None else reader(array)
        if tensor is not None:
            self._kept[position] = (in_place, None, array.shape, array.dtype)
            return tensor
        if copy is not None and is_like_last:
            tensor, view = copy
            view[...] = array
            return tensor
        tensor = _own_tensor(array)
        made = memory_view(tensor)
        if made.flags.writeable:
            self._kept[position] = (in_place, (tensor, made), made.shape, made.dtype)
        else:
            self._kept.pop(position, None)
        return tensor

    def write(
        self, tensors: Sequence[tvm_ffi.Tensor], written: Sequence[tvm_ffi.Tensor]
    ) -> list[np.ndarray]:
        """The outputs for checked inputs, those with a parameter in the memory of ``written``."""
        return self._outputs(tensors, written)

    def _outputs(
        self,
        tensors: Sequence[tvm_ffi.Tensor],
        written: Sequence[tvm_ffi.Tensor] = (),
    ) -> list[np.ndarray]:
        thread_pool.use_threads(self._threads)
        try:
            result = self._with_out_params(*tensors, *written) if written else self.main(*tensors)
            views = self._views(result)
            if self._release is not None and _are_large(views):
                self._release()
            return views
        except TVM_ERRORS as error:
            raise self._run_error(error, tensors) from error

    def _views(self, result: Any) -> list[np.ndarray]:
        """Raises ValueError of NumPy where a result's size is less than nothing."""
        if isinstance(result, _Tensor):
            return [memory_view(result)]
        try:
            # Iterating over an array of TVM's takes a microsecond a tensor, and a comprehension
            # longer than a loop.
            views = []
            for place in self._places:
                views.append(_view(_field(result, place)))
            return views
        except _NO_VIEW:
            return [memory_view(_field(result, place)) for place in self._places]


def _are_large(arrays: Sequence[np.ndarray]) -> bool:
    nbytes = 0
    for array in arrays:
        nbytes += array.nbytes
    return nbytes >= LARGE_RESULT_BYTES


def _never(_array: np.ndarray) -> None:
    """For programs that may write to their inputs."""


def _in_place(array: np.ndarray) -> tvm_ffi.Tensor | None:
    """An array's own memory as a tensor, which a program reads only; None if it cannot be."""
    # NumPy gives what is empty strides of zero, which kernels refuse.
    if not array.size or not lies_in_order(array):
        return None
    try:
        return memory_tensor(array)
    except _NO_VIEW:
        return None


def lies_in_order(array: np.ndarray) -> bool:
    """Whether a program can read the array where it lies: without gaps, at an address of its type.

    Any such address will do.
    """
    flags = array.flags
    return bool(flags.c_contiguous and flags.aligned)


def memory_tensor(array: np.ndarray) -> tvm_ffi.Tensor:
    """The array's own memory as a tensor; raises what NumPy does for types that it hands to nobody.

    A program may only read it where the array may only be read.
    """
    seen = array if array.flags.writeable else np.asarray(_Writeable(array))
    return tvm_ffi.from_dlpack(seen)


class _Writeable:
    """The memory of an array that may only be read, as one that may be written to.

    NumPy hands out no other to other libraries by DLPack; programs only read their inputs.
    """

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def _own_tensor(array: np.ndarray) -> tvm_ffi.Tensor:
    """A tensor of an array's values in memory of its own, aligned as programs' memory is."""
    allocate, copy, device = _functions_for_tensors()
    tensor = allocate(tvm_ffi.Shape(array.shape), _own_type(array.dtype), device, None)
    if array.size:
        copy(tensor, array.ctypes.data_as(ctypes.c_void_p), array.nbytes)
    return tensor


@cache
def _own_type(dtype: np.dtype) -> tvm_ffi.dtype:
    return tvm_ffi.dtype(str(dtype))


@cache
def _functions_for_tensors() -> tuple[Callable[..., Any], Callable[..., Any], Any]:
    """TVM's functions that allocate a tensor and copy to it, and the CPU; TVM has to be there."""
    names = "runtime.TVMTensorAllocWithScope", "runtime.TVMTensorCopyFromBytes"
    allocate, copy = map(tvm_ffi.get_global_func, names)
    return allocate, copy, tvm_ffi.device("cpu", 0)


def memory_view(tensor: tvm_ffi.Tensor) -> np.ndarray:
    """The memory of a tensor on the CPU as an array.

    Of types that NumPy takes from nobody (bfloat16) it is a view of its bits.
    """
    try:
        return _view(tensor)
    except _NO_VIEW:
        view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
        bits = view(tensor, tvm_ffi.Shape(tensor.shape), f"uint{tensor.dtype.bits}", 0)
        return _view(bits).view(getattr(ml_dtypes, str(tensor.dtype)))


def to_array(tensor: tvm_ffi.Tensor) -> np.ndarray:
    """A copy of the tensor's values, which later runs do not change."""
    return memory_view(tensor).copy()
