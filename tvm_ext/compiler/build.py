"""Generates code for a planned module."""

import tvm
from tvm import relax

from tvm_ext.errors import BuildError


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
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1][:300] if lines else type(error).__name__
        raise BuildError(
            f"no code could be generated for target {target.kind.name} ({reason}); expected a "
            "module that its tool chain accepts: try --opt-level 0 or another target"
        ) from error
