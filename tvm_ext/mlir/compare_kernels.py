"""Compares the code that TVM generates for each kernel of a model with MLIR's for the same kernel.

TVM's is of the scheduled kernel, as the model's program has it; MLIR's is of the kernel before it
was scheduled. So a schedule that computes something else shows as well.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from rich.console import Group, RenderableType
from rich.text import Text
from tvm import tirx

from tvm_ext.check.tolerance import TOLERANCES, OutputDifference, compare, worst
from tvm_ext.compiler.build import BUILD_ERRORS
from tvm_ext.compiler.kernel_work import work_of_call
from tvm_ext.compiler.stages import ModelSource
from tvm_ext.configs.errors import NotApplicable
from tvm_ext.configs.progress import tell
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.mlir import MlirError
from tvm_ext.mlir.execution import CompiledKernel
from tvm_ext.mlir.from_tensorir import (
    convert_scheduled,
    is_buffer,
    written_parameters,
)
from tvm_ext.mlir.kept_modules import kernel_in_mlir, without_module
from tvm_ext.mlir.model_kernels import KernelsRequest, ModelKernel, ModelKernels, model_kernels
from tvm_ext.mlir.random_arguments import DRAWS, random_arguments
from tvm_ext.mlir.rounding_sensitivity import (
    Results,
    is_few_moves,
    moved_by_rounding,
    moves_everywhere,
)
from tvm_ext.report.terminal_tables import FlexibleTable, ShortName, plain_text
from tvm_ext.report.units import ABSENT, plain
from tvm_ext.tensor_spec import listed, narrowest_float
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels

AGREES, DIFFERS, NOT_CONVERTED, NOT_COMPARED = (
    "agrees",
    "differs",
    "not converted",
    "not compared",
)

OUTCOMES = (AGREES, DIFFERS, NOT_CONVERTED, NOT_COMPARED)

# The largest difference of one kernel's floating-point results, relative to their largest
# magnitude. float32: sums of some thousand terms in another order, and functions of the C library
# beside polynomials, differ by up to 1e-5. Narrower types as for a whole model.
_OF_ONE_KERNEL = {**TOLERANCES, "float32": 1e-4, "float64": 1e-6}

# Numbers that are rounded to integers: one that lies between two of them may go to either.
_SHARE_OF_STEPS = 0.01


@dataclass(frozen=True)
class KernelComparison:
    """One kernel by both generators.

    Attributes
    ----------
    name : str
        The kernel.
    origins : tuple[str, ...]
        The ONNX nodes that it computes.
    outcome : str
        "agrees", "differs", "not converted" or "not compared".
    reason : str
        Why it was not converted or not compared; what is at fault where it differs.
    form : str
        What it is in MLIR; empty where it was not converted.
    difference : OutputDifference or None
        Of the result that is furthest off.
    """

    name: str
    origins: tuple[str, ...]
    outcome: str
    reason: str = ""
    form: str = ""
    difference: OutputDifference | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "name": self.name,
            "origins": list(self.origins),
            "outcome": self.outcome,
            "reason": self.reason,
            "form": self.form,
            "difference": self.difference and self.difference.to_dict(),
        }


@dataclass(frozen=True)
class MlirCheck:
    """The kernels of a model by both generators, in the order of a run.

    Attributes
    ----------
    model, target, opt_level : str
        The name of the model, the target and the optimisation level.
    kernels : tuple[KernelComparison, ...]
        Each once.
    """

    model: str
    target: str
    opt_level: str
    kernels: tuple[KernelComparison, ...]

    @property
    def ok(self) -> bool:
        """Whether no kernel differs."""
        return self.first is None

    @property
    def first(self) -> KernelComparison | None:
        """The first kernel that differs."""
        return next((one for one in self.kernels if one.outcome == DIFFERS), None)

    def count(self, outcome: str) -> int:
        """How many kernels have an outcome."""
        return sum(one.outcome == outcome for one in self.kernels)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "model": self.model,
            "target": self.target,
            "opt_level": self.opt_level,
            "against": "mlir",
            "ok": self.ok,
            "kernels": [one.to_dict() for one in self.kernels],
        }

    def renderable(self) -> RenderableType:
        """The outcome as one rich renderable."""
        title = Text(plain(self.model), style="bold")
        title.append(f"  optimisation {self.opt_level}, target {plain(self.target)}: ", "dim")
        verdict = "agrees with" if self.ok else "differs from"
        title.append(f"TVM's code {verdict} MLIR's", style="green" if self.ok else "red")
        table = FlexibleTable("", "Kernels", ">Count", ">Differ by at most")
        for outcome in OUTCOMES:
            of_it = [one for one in self.kernels if one.outcome == outcome]
            if of_it:
                differences = [one.difference.max_rel for one in of_it if one.difference]
                largest = f"{max(differences):.1e}" if differences else ABSENT
                table.add_row(outcome, f"{len(of_it):,}", largest)
        return Group(title, table, *self._details())

    def __str__(self) -> str:
        """What ``to_text`` returns."""
        return self.to_text()

    def to_text(self, width: int = 100) -> str:
        """The outcome as plain text, at most ``width`` characters wide."""
        return plain_text(self.renderable(), width)

    def _details(self) -> list[RenderableType]:
        """The kernels that do not agree, the first that differs ahead."""
        parts: list[RenderableType] = []
        first = self.first
        if first is not None:
            found = first.difference
            where = "" if found is None else f", result '{found.name}': {found.reason}"
            nodes_of_it = f" ({listed(first.origins)})" if first.origins else ""
            sentence = f"The first that differs is {first.name}{nodes_of_it}{where}."
            parts += [Text(), Text(plain(f"{sentence} At fault is {first.reason}."))]
        rows = [one for one in self.kernels if one.outcome in (NOT_CONVERTED, NOT_COMPARED)]
        if rows:
            table = FlexibleTable("What was not compared", "~Kernel", "Outcome", "Reason")
            for one in rows:
                table.add_row(ShortName(one.name), one.outcome, plain(one.reason))
            parts += [Text(), table]
        return parts


def check_against_mlir(model: ModelSource, request: KernelsRequest, seed: int = 0) -> MlirCheck:
    """Runs each kernel of a model by TVM's code and by MLIR's, on the same random arguments.

    Parameters
    ----------
    model : str, Path or onnx.ModelProto
        The model.
    request : KernelsRequest
        How it is compiled, and the sizes of dynamic dimensions.
    seed : int
        Of the arguments.

    Raises
    ------
    TvmExtError
        As ``tvm_ext.compile``.
    """
    found = model_kernels(model, request, with_schedules=True)
    library = _library(found)
    compared: list[KernelComparison] = []
    alike: dict[Any, KernelComparison] = {}
    for number, kernel in enumerate(found.kernels, start=1):
        tell(f"kernel {number} of {len(found.kernels)}")
        key = kernel.code, tvm_ffi.StructuralKey(kernel.func)
        if key not in alike:
            alike[key] = compare_kernel(kernel, library, found.machine, seed)
        compared.append(replace(alike[key], name=kernel.name, origins=kernel.origins))
    return MlirCheck(found.model, found.machine.name, found.opt_level, tuple(compared))


def _library(found: ModelKernels) -> Any:
    """TVM's code of all scheduled kernels."""
    scheduled = {one.code: one.scheduled for one in found.kernels if one.scheduled is not None}
    return tvm_code(scheduled, found.machine)


def tvm_code(kernels: Mapping[str, tirx.PrimFunc], machine: MachineDescription) -> Any:
    """Kernels by their names as TVM compiles them, to be called with its tensors."""
    named = {
        name: without_module(func).with_attr("global_symbol", name)
        for name, func in kernels.items()
    }
    return compile_kernels(tvm.IRModule(named), machine.tvm_target())


def compare_kernel(
    kernel: ModelKernel,
    library: Any,
    machine: MachineDescription,
    seed: int = 0,
    *,
    scheduled: bool = False,
) -> KernelComparison:
    """One kernel by both generators.

    Parameters
    ----------
    kernel : ModelKernel
        The kernel.
    library
        Has TVM's code for it.
    machine : MachineDescription
        What it is compiled for.
    seed : int
        Of the arguments.
    scheduled : bool
        Whether MLIR's code is of the scheduled kernel as well: what differs then is the fault of a
        code generator.
    """
    done = KernelComparison(kernel.name, kernel.origins, NOT_CONVERTED)
    try:
        if scheduled and kernel.scheduled is not None:
            converted = convert_scheduled(kernel.scheduled, "kernel", machine)
        else:
            converted = kernel_in_mlir(kernel.func, "kernel")
        done = replace(done, form=converted.form)
        code = CompiledKernel(converted)
    except NotApplicable as refused:
        return replace(done, reason=refused.reason)
    except MlirError as error:
        return replace(done, reason=str(error))
    done = replace(done, outcome=NOT_COMPARED)
    if kernel.arguments is None:
        return replace(done, reason="no sizes were found that fit together")
    if kernel.scheduled is None:
        return replace(done, reason="a pass took it out of the program")
    work = work_of_call(kernel.func, kernel.arguments)
    if work is not None and work.flops > _MOST_OPERATIONS:
        return replace(done, reason=f"{work.flops:.1e} operations take long in plain loops")
    runs = _Runs(kernel, code, library[kernel.code or kernel.name], packed=scheduled)
    return _run_both(runs, machine, seed, done)


# Of one call, which plain loops compute in some seconds.
_MOST_OPERATIONS = 2e10


@dataclass(frozen=True)
class _Runs:
    """Calls of both codes of a kernel; ``packed`` says whether MLIR's takes packed weights."""

    kernel: ModelKernel
    code: CompiledKernel
    function: Any
    packed: bool

    def by_tvm(self, drawn: list[Any]) -> dict[str, np.ndarray]:
        return _by_tvm(self.kernel, self.function, _packed(self.kernel, drawn))

    def by_mlir(self, drawn: list[Any]) -> dict[str, np.ndarray]:
        given = _packed(self.kernel, drawn) if self.packed else drawn
        arguments = [one.copy() if isinstance(one, np.ndarray) else one for one in given]
        self.code(arguments)
        return _results(self.kernel.func, arguments)


@dataclass(frozen=True)
class _Compared:
    """Results of both codes for the same arguments; ``is_unsteady``: rounding moves all of ours."""

    drawn: list[Any]
    theirs: Results
    difference: OutputDifference | None
    is_unsteady: bool
    has_nan: bool

    @property
    def ok(self) -> bool:
        return self.difference is None or self.difference.ok


def _run_both(
    runs: _Runs, machine: MachineDescription, seed: int, done: KernelComparison
) -> KernelComparison:
    kernel = runs.kernel
    for draw in DRAWS:
        drawn = random_arguments(kernel.func, kernel.arguments or (), seed, draw)
        found = _compared(kernel, drawn, runs.by_tvm, runs.by_mlir(drawn))
        if not found.has_nan and not found.is_unsteady:
            break
    if found.ok:
        return replace(done, outcome=AGREES, difference=found.difference)
    if found.is_unsteady:
        return replace(done, reason="rounding of its arguments moves its results as far")
    fault = _fault(kernel, machine, found)
    return replace(done, outcome=DIFFERS, difference=found.difference, reason=fault)


def _compared(
    kernel: ModelKernel, drawn: list[Any], by_tvm: Callable[[list[Any]], Results], theirs: Results
) -> _Compared:
    ours = by_tvm(drawn)
    found = _differences(kernel.func, ours, theirs)
    has_nan = any(map(_has_nan, ours.values()))
    if all(one.ok for one in found):
        return _Compared(drawn, theirs, worst(found) if found else None, False, has_nan)
    moved = moved_by_rounding(by_tvm, drawn)
    is_unsteady = False
    for place, one in enumerate(found):
        result, those = ours[one.name], [own[one.name] for own in moved]
        allowed = one.tolerance * _magnitude(result)
        is_unsteady = is_unsteady or moves_everywhere(result, those, allowed)
        if not one.ok and is_few_moves(result, theirs[one.name], those, allowed):
            found[place] = replace(one, ok=True, reason="few places, as far as rounding moves them")
    return _Compared(drawn, theirs, worst(found), is_unsteady, has_nan)


def _magnitude(array: np.ndarray) -> float:
    wide = np.abs(array.astype(np.float64))
    return float(wide.max(initial=0.0, where=np.isfinite(wide)))


def _fault(kernel: ModelKernel, machine: MachineDescription, found: _Compared) -> str:
    """What is at fault: TVM's code for the kernel as it was before tells."""
    try:
        plain = tvm_code({kernel.name: kernel.func}, machine)
    except BUILD_ERRORS:
        return "not known: TVM does not compile the kernel without its schedule"
    run = partial(_by_tvm, kernel, plain[kernel.name])
    if _compared(kernel, found.drawn, run, found.theirs).ok:
        return "its schedule: TVM's code for the kernel before it was scheduled agrees with MLIR's"
    return "a code generator: TVM's code for the kernel before it was scheduled differs as well"


def _packed(kernel: ModelKernel, drawn: list[Any]) -> list[Any]:
    """The arguments as the scheduled kernel takes them."""
    order = kernel.packed
    if order is None:
        return drawn
    return [order.pack(one) if n == order.parameter else one for n, one in enumerate(drawn)]


def _by_tvm(kernel: ModelKernel, function: Any, drawn: list[Any]) -> dict[str, np.ndarray]:
    arguments = [
        tvm.runtime.tensor(one) if isinstance(one, np.ndarray) else int(one) for one in drawn
    ]
    function(*arguments)
    arrays = [one if isinstance(one, int) else one.numpy() for one in arguments]
    return _results(kernel.func, arrays)


def _results(kernel: tirx.PrimFunc, arguments: list[Any]) -> dict[str, np.ndarray]:
    return {str(kernel.params[n].name): arguments[n] for n in written_parameters(kernel)}


def _has_nan(array: np.ndarray) -> bool:
    return array.dtype.kind not in "biu" and bool(np.isnan(array.astype(np.float64)).any())


def _differences(kernel: tirx.PrimFunc, ours: Results, theirs: Results) -> list[OutputDifference]:
    narrowest = _narrowest(kernel)
    rtol = _OF_ONE_KERNEL.get(narrowest)
    found = compare(ours, theirs, rtol, dict.fromkeys(ours, narrowest))
    if narrowest:
        found = [_with_rounding(one, ours[one.name], theirs[one.name]) for one in found]
    return found


def _narrowest(kernel: tirx.PrimFunc) -> str:
    """The narrowest floating-point type that a kernel reads or writes; empty without any."""
    accessed = [load.source for load in nodes(kernel.body, tvm.ir.TensorLoad)]
    accessed += [store.buffer for store in nodes(kernel.body, tirx.BufferStore)]
    accessed += [param for param in kernel.params if is_buffer(param)]
    floats = sorted({str(one.dtype) for one in accessed if "float" in str(one.dtype)})
    result = ""
    for one in floats:
        result = narrowest_float(one, result) if result else one
    return result


def _with_rounding(one: OutputDifference, ours: np.ndarray, theirs: np.ndarray) -> OutputDifference:
    """Integers that a kernel rounds to may be one off, where few are."""
    if one.ok or one.dtype not in _INTEGERS or ours.shape != theirs.shape:
        return one
    gap = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    if gap.max(initial=0) > 1 or np.count_nonzero(gap) > max(1, _SHARE_OF_STEPS * gap.size):
        return one
    return replace(one, ok=True, tolerance=1.0, reason="one step in few places, by rounding")


_INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
