"""What kernels promise LLVM of the memory of their arguments."""

import tvm
from tvm import tirx
from tvm_ffi import structural_map

# Kernels with one buffer say that their buffers do not overlap, which all others have said.
#
# TVM's code generator for CPUs declares all functions of a module first, and then takes what the
# last of them, by name, says of overlapping for all of them. The function that computes symbolic
# sizes says nothing: every kernel with a name before ``shape_func`` came without that promise,
# and LLVM left its loops scalar.

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


# Kernels take tensors that begin anywhere, so that a caller's arrays are read where they lie.
#
# TVM promises LLVM that each argument begins at a multiple of 64 bytes. NumPy's arrays begin at
# multiples of 16, slices of them anywhere: they would have to be copied.

_PROMISE = "storage_alignment"


@tirx.transform.prim_func_pass(opt_level=0, name="UnalignedArguments")
class UnalignedArguments:
    """Takes back the promise that arguments begin at a multiple of 64 bytes.

    Before: ``with T.attr(x, "storage_alignment", 64): body``
    After:  ``body``, in which LLVM knows that an argument is aligned to its elements

    Loads and stores of vectors that expect nothing have been as fast as those for aligned memory
    since AVX, where the memory is aligned.

    Leaves alone: buffers that a kernel allocates, which are aligned.

    Run after: MakePackedAPI, which writes the promises.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Functions that were promised nothing stay as they are."""
        return func.with_body(structural_map(func.body, (tirx.AttrStmt, _without_promise)))


def _without_promise(node: tirx.AttrStmt) -> tirx.Stmt:
    return node.body if node.attr_key == _PROMISE else node
