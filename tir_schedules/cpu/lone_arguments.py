"""Kernels with one buffer say that their buffers do not overlap, which all others have said.

TVM's code generator for CPUs declares all functions of a module first, and then takes what the last
of them, by name, says of overlapping for all of them. The function that computes symbolic sizes
says nothing: every kernel with a name before ``shape_func`` came without that promise, and LLVM
left its loops scalar.
"""

import tvm
from tvm import tirx

_NO_ALIAS = "tirx.noalias"


@tirx.transform.prim_func_pass(opt_level=0, name="NoAliasOfLoneArguments")
class NoAliasOfLoneArguments:
    """Functions of one buffer at most are marked: it overlaps with no other one.

    Before: ``shape_func(H)``
    After:  ``shape_func(H)`` with ``tirx.noalias``

    Leaves alone: functions of several buffers, of which their writer has to know.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Functions that say something already stay as they are."""
        if (func.attrs is not None and _NO_ALIAS in func.attrs) or len(func.params) > 1:
            return func
        return func.with_attr(_NO_ALIAS, True)
