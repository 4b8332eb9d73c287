"""Generates code for a planned module."""

import tvm
from tvm import relax

from tvm_ext.errors import BuildError, reason_of


def build(mod: tvm.IRModule, target: tvm.target.Target) -> relax.VMExecutable:
    """The executable of the virtual machine.

    Raises
    ------
    BuildError
        Code generation fails: the tool chain lacks something, or a kernel breaks a limit.
    """
    try:
        with tvm.transform.PassContext(opt_level=3):
            return relax.build(mod, target=target, relax_pipeline=None)
    except (tvm.error.InternalError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise BuildError(
            f"no code could be generated for target {target.kind.name} ({reason_of(error)}); "
            "expected a module that its tool chain accepts: try --opt-level 0 or another target"
        ) from error
