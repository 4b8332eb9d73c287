"""Generates code for a planned module."""

import tvm
from tvm import relax

from tvm_ext.errors import BuildError, reason_of
from tvm_ext.tir_schedules.cuda.library.library_code import library_modules
from tvm_ext.tir_schedules.cuda.pass_options import lowering_pipeline, pass_options

# What code generation raises.
BUILD_ERRORS = (tvm.error.InternalError, RuntimeError, ValueError, TypeError, AttributeError)


def build(mod: tvm.IRModule, target: tvm.target.Target) -> relax.VMExecutable:
    """The executable of the virtual machine.

    Raises
    ------
    BuildError
        Code generation fails: the tool chain lacks something, or a kernel breaks a limit.
    """
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
        raise BuildError(
            f"no code could be generated for target {target.kind.name} ({reason_of(error)}); "
            "expected a module that its tool chain accepts: try --opt-level 0 or another target"
        ) from error
