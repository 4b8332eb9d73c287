"""What dataflow analyses find in a model, by ONNX node."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.compiler.stages import ModelSource
from tvm_ext.configs.errors import nearest_hint
from tvm_ext.errors import InputError
from tvm_ext.onnx_frontend import ImportedModel, import_model
from tvm_ext.passes.pipeline import build_pipeline
from tvm_ext.passes.runner import BUILDER_LOCK, PassRunner
from tvm_ext.relay_passes.dataflow.constants import Known, constants
from tvm_ext.relay_passes.dataflow.framework import is_unreached
from tvm_ext.relay_passes.dataflow.interval import ValueRange, element_type
from tvm_ext.relay_passes.dataflow.liveness import live_ranges, needed
from tvm_ext.relay_passes.dataflow.memory_usage import MemoryUsage, memory_usage
from tvm_ext.relay_passes.dataflow.rounding_error import Error, rounding_errors
from tvm_ext.relay_passes.dataflow.side_effects import (
    SideEffects,
    may_be_duplicated,
    may_be_moved,
    may_be_removed,
)
from tvm_ext.relay_passes.dataflow.symbolic_shapes import SymbolicShapes, symbolic_shapes
from tvm_ext.relay_passes.dataflow.value_numbering import ValueNumbers, value_numbers
from tvm_ext.relay_passes.dataflow.value_ranges import value_ranges
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.spans import all_bindings_of, describe_origin, relax_functions
from tvm_ext.tensor_spec import listed

# The analysis by name, with what it says of a value.
ANALYSES: Mapping[str, str] = {
    "ranges": "between which numbers the elements lie",
    "constants": "which values are known",
    "equal": "which values equal an earlier one",
    "shapes": "sizes, and between which numbers they lie",
    "precision": "bounds of the rounding error",
    "liveness": "what the results need, and how long a value is alive",
    "memory": "bytes alive while a value is computed",
    "effects": "what may be left out, moved and computed twice",
}


@dataclass(frozen=True)
class ValueAnalysis:
    """What was found of the value of one binding.

    Attributes
    ----------
    node : str
        The ONNX nodes that it computes, or the variable's name.
    operator : str
        Operator of Relax, the function that is called, or the number of the field of a tuple;
        empty for other names of a value.
    facts : mapping of str to mapping
        By analysis, in values that JSON has; an infinite number is the text "inf" or "-inf".
    """

    node: str
    operator: str
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class FunctionAnalysis:
    """The values of a function of the module: "main", a branch, an iteration of a loop."""

    name: str
    values: list[ValueAnalysis]
    memory: MemoryUsage | None = None


@dataclass(frozen=True)
class ModelAnalysis:
    """What the chosen analyses found in a model."""

    model: str
    analyses: tuple[str, ...]
    functions: list[FunctionAnalysis]

    def to_dict(self) -> dict[str, Any]:
        """In values that JSON has."""
        return {
            "model": self.model,
            "analyses": list(self.analyses),
            "functions": [
                {
                    "name": function.name,
                    "values": [vars(value) for value in function.values],
                    **_peak(function),
                }
                for function in self.functions
            ],
        }


def _peak(function: FunctionAnalysis) -> dict[str, Any]:
    usage = function.memory
    if usage is None:
        return {}
    where = function.values[usage.place].node if usage.place >= 0 else ""
    found = {"bytes": usage.peak, "node": where, "formula": usage.formula}
    return {"peak": {**found, "is_complete": usage.is_complete}}


def analyze_model(
    model: ModelSource,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    analyses: Sequence[str] = (),
    input_ranges: Mapping[str, tuple[float, float]] | None = None,
) -> ModelAnalysis:
    """Analyses a model as it is after import and the first folding of constants.

    Parameters
    ----------
    model : path, onnx.ModelProto or tvm.IRModule
        As for ``tvm_ext.compile``.
    input_shapes : mapping, optional
        As for ``tvm_ext.compile``.
    analyses : sequence of str
        Names of ``ANALYSES``; all of them when empty.
    input_ranges : mapping of str to pair of float, optional
        Inputs of which a user promises that all numbers lie between these two.

    Raises
    ------
    InputError
        An analysis or an input is unknown, or a range is none.
    TvmExtError
        As ``tvm_ext.compile`` for a model that cannot be imported.
    """
    chosen = tuple(analyses) or tuple(ANALYSES)
    for name in chosen:
        if name not in ANALYSES:
            raise InputError(f"analysis '{name}' is unknown; {nearest_hint(name, ANALYSES)}")
    with BUILDER_LOCK:
        imported = import_model(model, input_shapes)
    _check_ranges(imported, input_ranges or {})
    folded = _folded(imported.mod)
    facts = _Facts(folded, imported, input_ranges or {})
    functions = [
        _of_function(str(var.name_hint), func, chosen, facts)
        for var, func in sorted(relax_functions(folded).items(), key=_main_first)
    ]
    return ModelAnalysis(imported.name, chosen, functions)


def _main_first(item: tuple[tvm.ir.GlobalVar, relax.Function]) -> tuple[bool, str]:
    name = str(item[0].name_hint)
    return name != "main", name


def _check_ranges(imported: ImportedModel, given: Mapping[str, tuple[float, float]]) -> None:
    names = [one.name for one in imported.inputs]
    for name, (low, high) in given.items():
        if name not in names:
            quoted = listed([f"'{one}'" for one in names])
            raise InputError(
                f"{imported.name}: a range was given for '{name}', which is no input; expected one "
                f"of {quoted}: give it for one of them"
            )
        if not low <= high:
            raise InputError(
                f"the range of input '{name}' goes from {low:g} to {high:g}; expected the lower "
                "number first: swap them"
            )


def _folded(mod: tvm.IRModule) -> tvm.IRModule:
    """The module after the first passes of every level, the first folding among them."""
    steps = build_pipeline("O1").graph
    names = [step.entry.name for step in steps]
    return PassRunner().run(steps[: names.index("FoldConstantCalls") + 1], mod)


class _Facts:
    """The analyses of a module, each made when it is first asked for."""

    def __init__(
        self,
        mod: tvm.IRModule,
        imported: ImportedModel,
        inputs: Mapping[str, tuple[float, float]],
    ) -> None:
        self.mod = mod
        self._sizes = {name: allowed.ends for name, allowed in imported.ranges.items()}
        params = mod["main"].params[:]
        # Relax may have renamed an input.
        self._inputs = {
            str(param.name): inputs[spec.name]
            for param, spec in zip(params, imported.inputs, strict=False)
            if spec.name in inputs
        }

    @functools.cached_property
    def ranges(self) -> Any:
        return value_ranges(self.mod, self._sizes, self._inputs)

    @functools.cached_property
    def errors(self) -> Any:
        return rounding_errors(self.mod, self._sizes, self._inputs)

    @functools.cached_property
    def constants(self) -> Any:
        return constants(self.mod)

    @functools.cached_property
    def numbers(self) -> ValueNumbers:
        return value_numbers(self.mod)

    @functools.cached_property
    def shapes(self) -> SymbolicShapes:
        return symbolic_shapes(self.mod, self._sizes)

    @functools.cached_property
    def needed(self) -> Any:
        return needed(self.mod)

    @functools.cached_property
    def effects(self) -> SideEffects:
        return SideEffects(self.mod)

    @functools.cached_property
    def memory(self) -> dict[str, MemoryUsage]:
        return memory_usage(self.mod, self._sizes)


def _of_function(
    name: str, func: relax.Function, chosen: Sequence[str], facts: _Facts
) -> FunctionAnalysis:
    bindings = all_bindings_of(func)
    spans = live_ranges(func) if "liveness" in chosen else {}
    memory = facts.memory[name] if "memory" in chosen else None
    values = []
    for place, binding in enumerate(bindings):
        value = ValueAnalysis(describe_origin(binding.var), _operator(binding))
        for analysis in chosen:
            found: dict[str, Any] | None
            if analysis == "liveness":
                found = _liveness(binding, facts, spans, bindings)
            elif analysis == "memory":
                found = {"bytes": memory.after[place]} if memory is not None else None
            else:
                found = _FACTS[analysis](binding, facts)
            if found:
                value.facts[analysis] = found
        values.append(value)
    return FunctionAnalysis(name, values, memory)


def _operator(binding: relax.Binding) -> str:
    value = binding.value
    if isinstance(value, relax.TupleGetItem):
        return f"field {int(value.index)}"
    name = operator_name(value).removeprefix("relax.")
    if name or not isinstance(value, relax.Call):
        return name or ("match_cast" if isinstance(binding, relax.MatchCast) else "")
    return str(getattr(value.op, "name_hint", ""))


# What each analysis says of a value; None where it says nothing.


def _range(binding: relax.Binding, facts: _Facts) -> dict[str, Any] | None:
    found = facts.ranges.of(binding.var)
    if is_unreached(found):
        return {"unreached": True}
    if not isinstance(found, ValueRange) or not isinstance(binding.var.ty, relax.TensorType):
        return None
    if found == element_type(str(binding.var.ty.dtype)).anything():
        return None
    return {
        "low": _number(found.low),
        "high": _number(found.high),
        "may_be_nan": found.may_be_nan,
        "may_be_negative_zero": found.may_be_negative_zero,
        "is_integral": found.is_integral,
    }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _constant(binding: relax.Binding, facts: _Facts) -> dict[str, Any] | None:
    found = facts.constants.of(binding.var)
    if not isinstance(found, Known):
        return None
    array = found.array
    plain = array.astype(np.float64) if array.dtype.kind in "fV" else array
    numbers = [_number(float(n)) if plain.dtype.kind == "f" else n for n in plain.ravel().tolist()]
    return {"shape": list(array.shape), "values": numbers}


def _equal(binding: relax.Binding, facts: _Facts) -> dict[str, Any] | None:
    leader = facts.numbers.leader(binding.var)
    # Another name for a value is no second computation.
    if leader.same_as(binding.var) or not isinstance(binding.value, relax.Call):
        return None
    return {"to": describe_origin(leader)}


def _shape(binding: relax.Binding, facts: _Facts) -> dict[str, Any] | None:
    ty = binding.var.ty
    extents = facts.shapes.shape(ty)
    if extents is None:
        return {"rank": int(ty.ndim)} if isinstance(ty, relax.TensorType) else None
    bounds = [facts.shapes.bounds(size) for size in ty.shape.values[:]]
    return {
        "sizes": [int(size) if hasattr(size, "value") else str(size) for size in extents],
        "bounds": [list(one) for one in bounds],
    }


def _precision(binding: relax.Binding, facts: _Facts) -> dict[str, Any] | None:
    found = facts.errors.of(binding.var)
    is_float = "float" in str(getattr(binding.var.ty, "dtype", ""))
    if not isinstance(found, Error) or not is_float or found == Error(math.inf, math.inf):
        return None
    return {"absolute": _number(found.absolute), "relative": _number(found.relative)}


def _liveness(
    binding: relax.Binding, facts: _Facts, spans: Mapping[int, Any], bindings: Sequence[Any]
) -> dict[str, Any]:
    span = spans[hash(binding.var)]
    is_result = span.last >= len(bindings)
    until = "" if is_result else describe_origin(bindings[span.last].var)
    return {
        "is_needed": facts.needed.of(binding.var) is not None,
        "until": until,
        "bindings": span.last - span.first,
    }


def _effects(binding: relax.Binding, facts: _Facts) -> dict[str, Any] | None:
    if not isinstance(binding.value, relax.Call | relax.If | relax.Expr):
        return None
    effect = facts.effects.of(binding)
    return {
        "effects": [str(one.name).lower() for one in type(effect) if one and one in effect],
        "may_be_removed": may_be_removed(effect),
        "may_be_moved": may_be_moved(effect),
        "may_be_duplicated": may_be_duplicated(effect),
    }


_FACTS: Mapping[str, Callable[[relax.Binding, _Facts], dict[str, Any] | None]] = {
    "ranges": _range,
    "constants": _constant,
    "equal": _equal,
    "shapes": _shape,
    "precision": _precision,
    "effects": _effects,
}
