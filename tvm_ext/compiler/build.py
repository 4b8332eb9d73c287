"""Generates code for a planned module."""

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax, tirx

from tvm_ext.configs.progress import tell
from tvm_ext.errors import REPORT_IT, BuildError
from tvm_ext.open_dimensions import listed
from tvm_ext.tir_schedules.cuda.library.library_code import library_modules
from tvm_ext.tir_schedules.cuda.pass_options import compile_kernels, lowering_pipeline, pass_options

# What code generation raises.
BUILD_ERRORS = (tvm.error.InternalError, RuntimeError, ValueError, TypeError, AttributeError)


def build(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    origins: Mapping[str, Sequence[str]] | None = None,
) -> relax.VMExecutable:
    """The executable of the virtual machine.

    ``origins`` are the nodes that each kernel computes, by its name.

    Raises
    ------
    BuildError
        Code generation fails: the tool chain lacks something, or a kernel breaks a limit.
    """
    kernels = sum(isinstance(func, tirx.PrimFunc) for func in mod.functions.values())
    tell(f"code for {kernels} kernels")
    try:
        with tvm.transform.PassContext(opt_level=3, config=pass_options(target)):
            built = relax.build(
                mod, target=target, relax_pipeline=None, tir_pipeline=lowering_pipeline(target)
            )
        for module in library_modules(mod):
            # Beside the device code of the kernels that call it.
            built.mod.imports[0].import_module(module)
        return built
    except BUILD_ERRORS as error:
        raise BuildError(_no_code(mod, target, origins or {}), defect=True) from error


def can_be_built(func: tirx.PrimFunc, target: tvm.target.Target) -> bool:
    """Whether code can be generated for a kernel alone."""
    try:
        compile_kernels(func.with_attr("global_symbol", "main"), target)
    except BUILD_ERRORS:
        return False
    return True


def _no_code(
    mod: tvm.IRModule, target: tvm.target.Target, origins: Mapping[str, Sequence[str]]
) -> str:
    kernels = {
        str(global_var.name_hint): func
        for global_var, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
    }
    failed = [name for name, func in kernels.items() if not can_be_built(func, target)]
    kind = target.kind.name
    if failed and len(failed) == len(kernels) > 1:
        return (
            f"no code can be generated for target {kind} for any of {len(kernels)} kernels; "
            "expected a tool chain that works and a target that it knows: try another --target, "
            f"or {REPORT_IT}"
        )
    nodes = [" + ".join(origins.get(name, ())) or f"kernel {name}" for name in failed]
    where = f"what '{listed(nodes)}' computes" if nodes else "the program around its kernels"
    return (
        f"bug in tvm-ext: no code can be generated for target {kind} for {where}; expected code "
        f"for every kernel: try --opt-level 0 or another --target, and {REPORT_IT}"
    )
