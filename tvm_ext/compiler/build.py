"""Generates code for a planned module."""

import tvm
from tvm import relax

from tvm_ext.errors import BuildError, reason_of
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
            return relax.build(
                mod, target=target, relax_pipeline=None, tir_pipeline=lowering_pipeline(target)
            )
    except BUILD_ERRORS as error:
        raise BuildError(
            f"no code could be generated for target {target.kind.name} ({reason_of(error)}); "
            "expected a module that its tool chain accepts: try --opt-level 0 or another target"
        ) from error


def twin(
    executable: relax.VMExecutable, mod: tvm.IRModule, target: tvm.target.Target
) -> relax.VMExecutable:
    """The executable of ``mod`` once more, with the same kernels and weights in memory.

    A virtual machine writes a memory scope for each constant into the executable that it runs. When
    such a one is saved, TVM prints a warning for each, and again at every load: so one twin runs,
    the other is saved.
    """
    functions = {v: f for v, f in mod.functions.items() if isinstance(f, relax.Function)}
    second = build(tvm.IRModule(functions, attrs=mod.attrs), target)
    for kernels in executable.mod.imports:
        second.mod.import_module(kernels)
    return second
