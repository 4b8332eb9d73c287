"""Arrays of the caller's that results are written to: for one run, or bound for many."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm_ffi

from tvm_ext.configs.errors import nearest_hint
from tvm_ext.errors import InputError
from tvm_ext.model_inputs import HOLDERS, describe, is_named, numpy_type
from tvm_ext.program_call import ProgramCall, lies_in_order, memory_tensor
from tvm_ext.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from tvm_ext.compiled_model import CompiledModel

# NumPy hands arrays of these to other libraries: truth values, integers and floats of its own.
_SHARED_KINDS = "biuf"


def checked_out(
    specs: Sequence[TensorSpec], out: Mapping[str, Any], sizes: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """The arrays of ``out``, or views of the tensors in it, by name of the output.

    ``sizes`` are those of symbolic dimensions, as far as inputs decide them.

    Raises
    ------
    InputError
        A name is unknown, or a value is no array of the host that can be written to, of the
        output's dtype and shape.
    """
    if not isinstance(out, Mapping):
        raise InputError(
            f"out is a {type(out).__name__}, expected a mapping of output name to array: pass "
            f"{{name: array}} with {', '.join(repr(spec.name) for spec in specs)}"
        )
    known = {spec.name: spec for spec in specs}
    found = {}
    for name, value in out.items():
        if name not in known:
            hint = nearest_hint(str(name), known)
            raise InputError(f"out names output {name!r}, which the model does not have; {hint}")
        found[name] = _checked_output(known[name], value, sizes)
    return found


def _checked_output(spec: TensorSpec, value: Any, sizes: Mapping[str, int]) -> np.ndarray:
    array = value
    if not isinstance(value, np.ndarray):
        try:
            array = np.from_dlpack(value)
        except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(
                f"out['{spec.name}'] is a {type(value).__name__}, expected memory of the host for "
                f"{spec.describe()}: pass a NumPy array"
            ) from error
    wanted = [sizes.get(size) if isinstance(size, str) else size for size in spec.shape]
    fits = array.ndim == len(wanted) and all(
        size is None or size == given for size, given in zip(wanted, array.shape, strict=True)
    )
    if not fits or not is_named(array.dtype, spec.dtype):
        named = [size for size in spec.shape if isinstance(size, str) and size in sizes]
        sized = "".join(f", {name} = {sizes[name]}" for name in named)
        raise InputError(
            f"out['{spec.name}'] is {describe(array)}, expected {spec.describe()}{sized}: make it "
            "with np.empty of this shape and dtype"
        )
    if not array.flags.writeable:
        raise InputError(
            f"out['{spec.name}'] is read-only, expected an array that can be written to: pass a "
            "copy of it"
        )
    return array


def copy_into(name: str, array: np.ndarray, result: np.ndarray) -> None:
    """Copies a result whose shape the run decided; raises InputError where it does not fit."""
    if array.shape != result.shape:
        raise InputError(
            f"out['{name}'] is {describe(array)}, and this run's result is {describe(result)}; "
            "expected an array of that shape: make it with np.empty"
        )
    np.copyto(array, result)


def written_directly(
    specs: Sequence[TensorSpec],
    places: Sequence[int],
    out: Mapping[str, np.ndarray],
    inputs: Sequence[np.ndarray],
    sizes: Mapping[str, int],
) -> list[np.ndarray] | None:
    """The arrays that a program writes its results to; None where it cannot write to those given.

    ``places`` say which results it takes memory for: there is an array for each, in order, a new
    one where ``out`` has none. Kernels write while they read, so what overlaps with an input or
    another result has to be copied to.
    """
    known = with_new_arrays([specs[place] for place in places], out, sizes)
    arrays: list[np.ndarray] = []
    for place in places:
        array = known[specs[place].name]
        if array.dtype.kind not in _SHARED_KINDS or specs[place].dtype in HOLDERS:
            return None
        if not lies_in_order(array):
            return None
        if any(np.may_share_memory(array, other) for other in (*inputs, *arrays)):
            return None
        arrays.append(array)
    return arrays


def with_new_arrays(
    specs: Sequence[TensorSpec], out: Mapping[str, np.ndarray], sizes: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """``out``, and a new array for each output that is not in it.

    Raises
    ------
    InputError
        The size of an output that is not in ``out`` is not known before a run.
    """
    found = dict(out)
    for spec in specs:
        if spec.name in found:
            continue
        shape = _known_shape(spec, sizes)
        if shape is None:
            raise InputError(
                f"output '{spec.name}', {spec.describe()}, has a size that only a run decides; "
                "expected an array for it: pass one in out, or use run"
            )
        found[spec.name] = np.empty(shape, numpy_type(spec.dtype))
    return found


def _known_shape(spec: TensorSpec, sizes: Mapping[str, int]) -> list[int] | None:
    shape = []
    for size in spec.shape:
        known = sizes.get(size) if isinstance(size, str) else size
        if known is None:
            return None
        shape.append(known)
    return shape


def require_in_place(name: str, given: Any, array: np.ndarray) -> None:
    """Refuses an input that was copied for being read as ``array``; raises InputError."""
    if not isinstance(given, np.ndarray) or array.ctypes.data != given.ctypes.data:
        raise InputError(
            f"input '{name}' cannot be read in place; expected a NumPy array without gaps: pass "
            "np.ascontiguousarray of it, and write new values to that array"
        )


class IOBinding:
    """Runs of a model on arrays that stay the same: nothing is checked, copied or allocated again.

    Made by ``CompiledModel.io_binding``. Write to the arrays of ``inputs``, call ``run``, and read
    the arrays of ``out``. As the arrays are the same in each run, so that two runs at the same time
    would write to the same memory, use one binding for each thread.

    Attributes
    ----------
    inputs, out : dict[str, np.ndarray]
        The arrays that a run reads, and those that it writes to.
    """

    def __init__(
        self,
        model: "CompiledModel",
        inputs: Mapping[str, np.ndarray],
        out: Mapping[str, np.ndarray],
        written: Sequence[np.ndarray],
        call: Callable[[], ProgramCall],
        in_parts: Callable[[], None] | None = None,
    ) -> None:
        self.inputs = dict(inputs)
        self.out = dict(out)
        self._inputs = [memory_tensor(self.inputs[spec.name]) for spec in model.inputs]
        self._written: list[tvm_ffi.Tensor] = [memory_tensor(array) for array in written]
        direct = {id(array) for array in written}
        # What the program has no parameter for is copied behind each run.
        self._copied = [
            (place, spec.name)
            for place, spec in enumerate(model.outputs)
            if id(self.out[spec.name]) not in direct
        ]
        self._call = call
        self._in_parts = in_parts

    def run(self) -> dict[str, np.ndarray]:
        """Runs the model once; returns ``out``, the same arrays each time.

        Raises
        ------
        RunError
            The program failed while it ran.
        """
        if self._in_parts is not None:
            self._in_parts()
            return self.out
        results = self._call().write(self._inputs, self._written)
        for place, name in self._copied:
            copy_into(name, self.out[name], results[place])
        return self.out
