"""Kernels that keep a module of MLIR, from which their code is made in place of their loops.

Before: ``def relu(A, B): ...``
After:  the same, with the module's text as attribute ``tvm_ext.mlir``, and its stage beside it

The loops stay as they are and say what the kernel computes. No template schedules it, nothing is
computed in the memory of an operand, and MlirCodeGeneration makes its code of the module.
"""

from collections.abc import Callable
from dataclasses import replace

import tvm
from torch_mlir import ir
from tvm import tirx

from tvm_ext.compiler.graph_analysis import kernel_calls
from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cost_model import cost_model
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.mlir import MlirError
from tvm_ext.mlir.from_tensorir import ConvertedKernel, convert_kernel, convert_scheduled
from tvm_ext.mlir.linalg_fusion import fuse_and_tile
from tvm_ext.mlir.lowering import STAGES, lower_to
from tvm_ext.mlir.memory_optimization import optimize_memory
from tvm_ext.relay_passes.graph_pass import record_applied, record_refusal
from tvm_ext.relay_passes.spans import with_functions
from tvm_ext.tir_schedules.analysis.in_place import CODE_ATTRIBUTE, keeps_module
from tvm_ext.tir_schedules.apply_template import SCHEDULED_ATTRIBUTE

_STAGE_ATTRIBUTE = f"{CODE_ATTRIBUTE}_stage"
_NAME_ATTRIBUTE = f"{CODE_ATTRIBUTE}_function"
_FORM_ATTRIBUTE = f"{CODE_ATTRIBUTE}_form"

# Changes a module in place, and says in a few words what it did.
Change = Callable[[ir.Module], str]


def kernel_in_mlir(
    kernel: tirx.PrimFunc, name: str, context: ir.Context | None = None
) -> ConvertedKernel:
    """The module that a kernel keeps, at its stage, or the one that it is converted to.

    Raises NotApplicable where it has no form in MLIR.
    """
    context = context or ir.Context()
    if not keeps_module(kernel):
        return convert_kernel(kernel, name, context)
    module = ir.Module.parse(str(kernel.attrs[CODE_ATTRIBUTE]), context)
    form, function = str(kernel.attrs[_FORM_ATTRIBUTE]), str(kernel.attrs[_NAME_ATTRIBUTE])
    return ConvertedKernel(function, module, form, stage=str(kernel.attrs[_STAGE_ATTRIBUTE]))


def kernel_at(
    kernel: tirx.PrimFunc, name: str, stage: str, context: ir.Context | None = None
) -> ConvertedKernel:
    """The same, at a stage.

    Raises
    ------
    NotApplicable
        The kernel has no form in MLIR, or its module is beyond the stage.
    MlirError
        A pass of MLIR fails on it.
    """
    found = kernel_in_mlir(kernel, name, context)
    stages = ["", *STAGES]
    if stages.index(found.stage) > stages.index(stage):
        raise NotApplicable(f"another pass has brought it to stage {found.stage}, behind {stage}")
    lower_to(found.module, stage, done=found.stage)
    return replace(found, stage=stage)


def change_kernels(
    mod: tvm.IRModule, pass_name: str, stage: str, change: Change, wanted: str = ""
) -> tvm.IRModule:
    """Changes the modules of kernels at a stage; a kernel of which nothing changes stays as it is.

    What was done, and what could not be, is recorded by the kernel's nodes.

    Parameters
    ----------
    mod : tvm.IRModule
        The kernels, before they are scheduled.
    pass_name : str
        What the records are of.
    stage : str
        "linalg", "bufferized" or "llvm".
    change : callable
        Gets each module.
    wanted : str
        Only kernels with this in their name or in that of an ONNX node.
    """
    places = {call.kernel: call.where for call in reversed(kernel_calls(mod))}
    changed: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
    for variable, func in mod.functions.items():
        name = str(variable.name_hint)
        where = places.get(name) or name
        if not isinstance(func, tirx.PrimFunc) or (wanted not in name and wanted not in where):
            continue
        try:
            found = _changed(func, name, stage, change)
        except NotApplicable as refused:
            record_refusal(pass_name, where, refused.reason)
        except MlirError as error:
            record_refusal(pass_name, where, str(error))
        else:
            if found is not None:
                changed[variable], what = found
                record_applied(pass_name, where, what)
    return with_functions(mod, changed)


def _changed(
    kernel: tirx.PrimFunc, name: str, stage: str, change: Change
) -> tuple[tirx.PrimFunc, str] | None:
    """The kernel with its new module, and what was done; None where nothing was."""
    _require_free(kernel)
    with ir.Context() as context, ir.Location.name(name):
        found = kernel_at(kernel, name, stage, context)
        before = str(found.module)
        what = change(found.module)
        after = str(found.module)
        if after == before:
            return None
        _require_code(ir.Module.parse(after, context), stage)
    return _with_module(kernel, found, after, stage), what


def with_optimized_module(
    kernel: tirx.PrimFunc, machine: MachineDescription, *, fuses: bool, shares: bool
) -> tirx.PrimFunc:
    """A kernel that keeps its module, optimised by MlirLinalgFusion and MlirMemoryOptimization.

    Raises
    ------
    NotApplicable
        The kernel is no linalg on tensors in MLIR, or a pass of MLIR fails on it.
    """
    with ir.Context() as context, ir.Location.name(_SHORT_NAME):
        try:
            found = kernel_at(kernel, _SHORT_NAME, "linalg", context)
            if found.loops_because:
                raise NotApplicable(found.loops_because)
            if fuses:
                fuse_and_tile(found.module, cost_model(machine))
            lower_to(found.module, "bufferized", done="linalg")
            if shares:
                optimize_memory(found.module)
            text = str(found.module)
            _require_code(ir.Module.parse(text, context), "bufferized")
        except MlirError as error:
            raise NotApplicable(str(error)) from error
    return _with_module(kernel, found, text, "bufferized")


def with_module_of_loops(
    kernel: tirx.PrimFunc, finished: tirx.PrimFunc, machine: MachineDescription
) -> tirx.PrimFunc:
    """A kernel that keeps a module of its final loops.

    Raises
    ------
    NotApplicable
        The loops have no form in MLIR, or a pass of MLIR fails on them.
    """
    with ir.Context() as context, ir.Location.name(_SHORT_NAME):
        found = convert_scheduled(finished, _SHORT_NAME, machine, context)
        text = str(found.module)
        try:
            lower_to(found.module, "llvm")
        except MlirError as error:
            raise NotApplicable(str(error)) from error
    return _with_module(kernel, found, text, found.stage)


# The function of a kernel that others may be equal to, whatever their names are.
_SHORT_NAME = "kernel"


def _with_module(
    kernel: tirx.PrimFunc, found: ConvertedKernel, text: str, stage: str
) -> tirx.PrimFunc:
    kept = {
        CODE_ATTRIBUTE: text,
        _STAGE_ATTRIBUTE: stage,
        _NAME_ATTRIBUTE: found.name,
        _FORM_ATTRIBUTE: found.form,
    }
    return kernel.with_attrs({**kept, SCHEDULED_ATTRIBUTE: True})


def without_module(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel as its loops are."""
    for name in (CODE_ATTRIBUTE, _STAGE_ATTRIBUTE, _NAME_ATTRIBUTE, _FORM_ATTRIBUTE):
        kernel = kernel.without_attr(name) if name in (kernel.attrs or {}) else kernel
    return kernel


def _require_free(kernel: tirx.PrimFunc) -> None:
    is_scheduled = kernel.attrs is not None and SCHEDULED_ATTRIBUTE in kernel.attrs
    if is_scheduled and not keeps_module(kernel):
        raise NotApplicable("its loops are chosen already")


def _require_code(module: ir.Module, stage: str) -> None:
    """Raises MlirError, or NotApplicable, where no code comes of a changed module."""
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        cause = "; ".join(str(one.message) for one in error.error_diagnostics)
        raise NotApplicable(f"MLIR's verifier finds a fault in what is left: {cause}") from error
    lower_to(module, "llvm", done=stage)
