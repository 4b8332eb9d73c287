"""Programs for exact sizes beside that for any, as functions of one program: ``specialize=``.

They share weights, which are in a program once where their values are equal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.configs.errors import nearest_hint
from tvm_ext.errors import InputError
from tvm_ext.report.records import KernelRecord, specialized_name
from tvm_ext.tensor_spec import SizeRange, TensorSpec, listed, shapes_of, symbolic_names

Specialization: TypeAlias = Mapping[str, int | Sequence[int | str]]
"""Sizes of symbolic dimensions by name, or of inputs by theirs: ``{"N": 8}``, ``{"x": [8, 3]}``."""


def specialized_shapes(
    inputs: Sequence[TensorSpec], specialize: Sequence[Specialization]
) -> list[dict[str, list[int | str]]]:
    """Shapes of inputs, as for ``input_shapes``, of each specialised program.

    Parameters
    ----------
    inputs : sequence of TensorSpec
        The inputs of the program for any sizes.
    specialize : sequence of mappings
        As for ``tvm_ext.compile``.

    Raises
    ------
    InputError
        A name is neither an input nor a symbolic dimension, a size contradicts the model, a range
        or another one, or none is given.
    """
    return [_shapes(inputs, _sizes(inputs, given)) for given in specialize]


def _sizes(inputs: Sequence[TensorSpec], given: Specialization) -> dict[str, int]:
    """The given sizes by dimension."""
    names, by_name = symbolic_names(shapes_of(inputs)), {spec.name: spec for spec in inputs}
    sizes: dict[str, int] = {}
    for name, value in given.items():
        if isinstance(value, int):
            if name not in names:
                raise InputError(
                    f"specialize: '{name}' is no dynamic dimension; {nearest_hint(name, names)}"
                )
            found = {name: value}
        elif name in by_name:
            found = _sizes_of_input(by_name[name], value)
        else:
            raise InputError(f"specialize: no input '{name}'; {nearest_hint(name, by_name)}")
        for dimension, size in found.items():
            if sizes.setdefault(dimension, size) != size:
                raise InputError(
                    f"specialize: dimension '{dimension}' is {sizes[dimension]} and {size}; "
                    "expected one size for it: give one, or a program for each"
                )
    _require_sizes(inputs, sizes, given)
    return sizes


def _sizes_of_input(spec: TensorSpec, shape: Sequence[int | str]) -> dict[str, int]:
    """The sizes that a shape gives to symbolic dimensions; texts leave one as it is."""
    fits = len(shape) == len(spec.shape) and all(
        isinstance(size, str) or isinstance(own, str) or size == own
        for size, own in zip(shape, spec.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"specialize: {list(shape)} is no shape of {spec.describe()}; expected its known sizes "
            "and numbers for the others: give such"
        )
    pairs = zip(spec.shape, shape, strict=True)
    return {own: size for own, size in pairs if isinstance(own, str) and isinstance(size, int)}


def _require_sizes(
    inputs: Sequence[TensorSpec], sizes: Mapping[str, int], given: Specialization
) -> None:
    if not sizes:
        names = symbolic_names(shapes_of(inputs))
        expected = f"sizes for {listed(names)}" if names else "a model with dynamic sizes"
        raise InputError(
            f"specialize: {dict(given)} fixes no dynamic size; expected {expected}: give it, or "
            "leave specialize out"
        )
    for name, size in sizes.items():
        allowed = _range_of(inputs, name) or SizeRange(1)
        if size not in allowed:
            raise InputError(
                f"specialize: {size} is no size of dimension '{name}'; expected {allowed}: give a "
                "size in it"
            )


def _range_of(inputs: Sequence[TensorSpec], name: str) -> SizeRange | None:
    pairs = [pair for spec in inputs for pair in zip(spec.shape, spec.ranges, strict=False)]
    return next((allowed for own, allowed in pairs if own == name and allowed), None)


def _shapes(inputs: Sequence[TensorSpec], sizes: Mapping[str, int]) -> dict[str, list[int | str]]:
    """The shapes of the inputs that have one of these dimensions; others keep name and range."""

    def size(own: int | str, allowed: SizeRange | None) -> int | str:
        if isinstance(own, int) or own in sizes:
            return own if isinstance(own, int) else sizes[own]
        # What follows from the model alone is found again.
        was_given = allowed is not None and allowed.low > 0 and allowed.has_end
        return f"?:{allowed}" if was_given else "?"

    return {
        spec.name: [
            size(*pair)
            for pair in zip(spec.shape, spec.ranges or (None,) * len(spec.shape), strict=True)
        ]
        for spec in inputs
        if any(own in sizes for own in spec.shape)
    }


# One module of all programs.


def with_specialized(mod: tvm.IRModule, others: Sequence[tvm.IRModule]) -> tvm.IRModule:
    """The functions of a program for any sizes and, under names of their own, of the others.

    Parameters
    ----------
    mod, others : tvm.IRModule
        Right before code generation.
    """
    functions = dict(mod.functions.items())
    for number, other in enumerate(others, 1):
        functions.update(_renamed(other, number))
    return tvm.IRModule(functions, attrs=mod.attrs) if others else mod


def _renamed(mod: tvm.IRModule, number: int) -> dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc]:
    names = [str(var.name_hint) for var in mod.functions]
    new = {name: tvm.ir.GlobalVar(specialized_name(name, number)) for name in names}

    def renamed(func: tvm.ir.BaseFunc) -> tvm.ir.BaseFunc:
        if not isinstance(func, tirx.PrimFunc):
            func = tvm_ffi.structural_map(func, (tvm.ir.GlobalVar, lambda v: new[v.name_hint]))
        symbol = (func.attrs or {}).get("global_symbol")
        if symbol is None:
            return func
        return func.with_attr("global_symbol", specialized_name(str(symbol), number))

    return {new[str(var.name_hint)]: renamed(func) for var, func in mod.functions.items()}


def specialized_kernels(records: Sequence[KernelRecord], number: int) -> list[KernelRecord]:
    """The kernels under the names that they have in the program of all."""
    return [replace(record, name=specialized_name(record.name, number)) for record in records]
