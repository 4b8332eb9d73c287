"""Graphs of many cases compiled as one program: half of the time of one at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax, tirx
from tvm_ffi import structural_map
from unoptimised import machine_of


@dataclass(frozen=True)
class Rewrite:
    """A module, what a pass made of it, and inputs for which both are to give the same."""

    before: tvm.IRModule
    after: tvm.IRModule
    runs: Sequence[Sequence[np.ndarray]]


def assert_all_same(
    rewrites: Mapping[str, Rewrite], rtol: float = 1e-5, atol: float = 1e-5
) -> None:
    """No pass changed the numbers; a failure begins with the name of its case."""
    builder = relax.BlockBuilder()
    names = [[_added(builder, mod) for mod in (c.before, c.after)] for c in rewrites.values()]
    whole = relax.transform.DecomposeOpsForInference()(builder.get())
    machine = machine_of(relax.transform.LegalizeOps()(whole))
    for (label, case), pair in zip(rewrites.items(), names, strict=True):
        for arrays in case.runs:
            wanted, found = (_called(machine, name, arrays) for name in pair)
            for one, other in zip(found, wanted, strict=True):
                assert one.dtype == other.dtype, label
                np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, err_msg=label)


def _added(builder: relax.BlockBuilder, mod: tvm.IRModule) -> str:
    """The name under which the main function is called from now on.

    Variables are made anew: of two functions that share one, TVM takes one for the other.
    """
    own = {
        str(var.name_hint): builder.add_func(_unnamed(func), str(var.name_hint))
        for var, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
    }
    main = relax.utils.copy_with_new_vars(mod["main"])
    main = structural_map(main, (tvm.ir.GlobalVar, lambda old: own[str(old.name_hint)]))
    return str(builder.add_func(_unnamed(main), "main").name_hint)


def _unnamed(func: tvm.ir.BaseFunc) -> tvm.ir.BaseFunc:
    """Without the name that code of it would have, which may be that of another function."""
    return func.without_attr("global_symbol") if func.attrs else func


def _called(
    machine: relax.VirtualMachine, name: str, arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    result = machine[name](*map(tvm.runtime.tensor, arrays))
    values = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [value.numpy() for value in values]
