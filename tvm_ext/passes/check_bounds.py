"""The pass that keeps kernels inside their buffers."""

import functools
from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from tvm_ext.passes.pack_weights import kernel_arguments
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.spans import with_functions
from tvm_ext.tir_schedules.apply_template import SCHEDULED_ATTRIBUTE
from tvm_ext.tir_schedules.check_bounds import checked_bounds


@graph_pass
class CheckBounds:
    """Keeps what a kernel reads and writes inside its tensors, whatever a run gives it.

    Before: ``y[i, j] = x[i, at[i, j]]`` for ``i < m``, with ``x`` of shape ``(n, k)``
    After:  ``y[i, j] = x[i, max(min(at[i, j], k - 1), 0)]``, and a check of ``m <= n`` ahead of it

    Sizes are checked once a call, and a run whose sizes contradict each other ends in an error;
    an index from a tensor is checked where it is used.

    Leaves alone: accesses that are proved to be inside, and kernels that were scheduled before.

    Run after: legalisation and fusion. Run before: ScheduleKernels.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when all kernels are known to stay inside."""
        changed = {}
        arguments = kernel_arguments(mod)
        for global_var, func in mod.functions.items():
            if not isinstance(func, tirx.PrimFunc):
                continue
            if func.attrs is not None and SCHEDULED_ATTRIBUTE in func.attrs:
                continue
            calls = arguments.get(str(global_var.name_hint), [])
            checked = checked_bounds(func, functools.partial(_tables, calls))
            if not checked.same_as(func):
                changed[global_var] = checked
        return with_functions(mod, changed)


def _tables(calls: Sequence[Sequence[relax.Expr]], place: int) -> list[np.ndarray] | None:
    """The constants that all ``calls`` of a kernel give to one of its parameters."""
    given = [call[place] if place < len(call) else None for call in calls]
    tables = [each.value.numpy() for each in given if isinstance(each, GenericConst)]
    return tables if len(tables) == len(given) else None
