"""TVM's EliminateCommonSubexpr, where there is something for it to do.

It takes a hash of every expression, and with that of all weights, also where nothing is computed
twice. A look at what operators are given says so sooner.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from tvm_ext.relay_passes.expressions import read_only
from tvm_ext.relay_passes.spans import all_bindings_of, relax_functions
from tvm_ext.relay_passes.spmd_partition import sharding_of

# Of a constant only this many elements are looked at, from either end.
_ELEMENTS = 8


def eliminate_common_subexpr(call_only: bool = False) -> tvm.transform.Pass:
    """Computes what several operators compute alike once.

    ``call_only`` leaves everything but calls as it is, such as tuples.

    Leaves alone: the program of one of several devices. Slices of weights that are equal on one
    device differ on another, and both have to exchange the same values.
    """
    by_tvm = relax.transform.EliminateCommonSubexpr(call_only)

    @tvm.transform.module_pass(opt_level=1, name="EliminateCommonSubexpr")
    def eliminate(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if sharding_of(mod) is not None:
            return mod
        return by_tvm(mod) if any(map(_may_repeat, relax_functions(mod).values())) else mod

    return eliminate


def _may_repeat(func: relax.Function) -> bool:
    """Whether two bindings of a function may be alike; False is sure."""
    groups: dict[Any, list[relax.Binding]] = {}
    for binding in all_bindings_of(func):
        groups.setdefault(_rough_key(binding.value), []).append(binding)
    return any(
        len(group) > 1 and _has_equals(_exact_key(binding.value) for binding in group)
        for group in groups.values()
    )


def _has_equals(keys: Iterable[Any]) -> bool:
    seen: set[Any] = set()
    for key in keys:
        if key in seen:
            return True
        seen.add(key)
    return False


def _rough_key(value: relax.Expr) -> Any:
    """The same for values that are alike: the operator, and the variables among its operands."""
    if isinstance(value, relax.Var):
        return hash(value)
    if isinstance(value, relax.Call):
        return hash(value.op), tuple(map(_rough_key, value.args[:]))
    if isinstance(value, relax.Tuple):
        return tuple(map(_rough_key, value.fields[:]))
    if isinstance(value, relax.TupleGetItem):
        return hash(value.tuple_value), int(value.index)
    return None


def _exact_key(value: relax.Expr) -> Any:
    """The same for values that are alike: now with attributes, literals and some of the numbers."""
    if isinstance(value, relax.Var):
        return hash(value)
    if isinstance(value, relax.Call):
        own = [one for one in (value.op, value.attrs, *value.ty_args[:]) if one is not None]
        return tuple(map(_exact_key, value.args[:])), tuple(map(tvm_ffi.StructuralKey, own))
    if isinstance(value, relax.Tuple):
        return tuple(map(_exact_key, value.fields[:]))
    if isinstance(value, relax.TupleGetItem):
        return hash(value.tuple_value), int(value.index)
    if isinstance(value, tvm.ir.GenericConst) and isinstance(value.value, tvm.runtime.Tensor):
        array = read_only(value.value)
        few = np.concatenate([array.flat[:_ELEMENTS], array.flat[-_ELEMENTS:]])
        return array.shape, str(value.value.dtype), few.tobytes()
    return tvm_ffi.StructuralKey(value)
