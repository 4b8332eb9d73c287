"""Many random graphs as one model, which takes two thirds of the time of one at a time.

They share nothing but the program and its arena, so that what one of them computes is overwritten
by the others. A graph whose results are not those of ONNX Runtime is left to be tried alone.
"""

import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import GraphProto
from special_inputs import Draw, draws
from trial import Case, Outcome, compile_case

from tvm_ext.check.reference import ReferenceSession
from tvm_ext.check.tolerance import compare
from tvm_ext.configs.errors import DefectWarning
from tvm_ext.errors import ReferenceUnavailableError
from tvm_ext.onnx_frontend.submodel import value_precision, with_types


@dataclass(frozen=True)
class _Part:
    """A graph with inputs, and what ONNX Runtime computes of each."""

    case: Case
    model: onnx.ModelProto
    precision: dict[str, str]
    runs: list[tuple[Draw, dict[str, np.ndarray]]]


def try_together(cases: Sequence[Case], inputs: int) -> list[Outcome | None]:
    """Compiles and runs graphs as few programs; None for each that is to be tried alone.

    Those of one program have the same operator set, optimisation level and options of passes.
    """
    alike: dict[str, list[int]] = {}
    parts = [_part(case, inputs) for case in cases]
    for number, part in enumerate(parts):
        if part is not None:
            case, operators = part.case, part.model.opset_import[0].version
            key = f"{operators} {case.opt_level} {case.pass_config}"
            alike.setdefault(key, []).append(number)
    found: list[Outcome | None] = [None] * len(cases)
    for numbers in alike.values():
        group = [part for number in numbers if (part := parts[number]) is not None]
        for number, outcome in zip(numbers, _tried(group), strict=True):
            found[number] = outcome
    return found


def _part(case: Case, inputs: int) -> _Part | None:
    """None where ONNX Runtime refuses the graph; other sizes that it refuses are left away."""
    model = onnx.load_from_string(case.model)
    drawn = draws(
        model, case.inputs, case.sizes, inputs, random.Random(f"inputs {case.source} {case.seed}")
    )
    runs: list[tuple[Draw, dict[str, np.ndarray]]] = []
    try:
        session = ReferenceSession(model, threads=1, optimise=False)
        runs.append((drawn[0], session.run(drawn[0].arrays)))
    except ReferenceUnavailableError:
        return None
    for draw in drawn[1:]:
        try:
            runs.append((draw, session.run(draw.arrays)))
        except ReferenceUnavailableError:
            runs.append(runs[0])
    return _Part(case, model, value_precision(with_types(model).graph), runs)


def _tried(parts: Sequence[_Part]) -> list[Outcome | None]:
    """Halves of what cannot be compiled or run, until what is at fault is alone."""
    outcomes = _ran(parts)
    if outcomes is not None:
        return outcomes
    if len(parts) == 1:
        return [None]
    middle = len(parts) // 2
    return _tried(parts[:middle]) + _tried(parts[middle:])


def _ran(parts: Sequence[_Part]) -> list[Outcome | None] | None:
    """None where the program refuses something."""
    model = joined([part.model for part in parts])
    outcomes: list[Outcome | None] = [Outcome() for _ in parts]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DefectWarning)
            program = compile_case(model, parts[0].case)
        for runs in zip(*(part.runs for part in parts), strict=True):
            given = {
                f"{_prefix(number)}{name}": array
                for number, (draw, _) in enumerate(runs)
                for name, array in draw.arrays.items()
            }
            results = program.run(given)
            for number, (part, (draw, wanted)) in enumerate(zip(parts, runs, strict=True)):
                got = {name: results[f"{_prefix(number)}{name}"] for name in wanted}
                outcome = outcomes[number]
                precision = value_precision(with_types(part.model).graph)
                if outcome is None or not all(
                    o.ok for o in compare(got, wanted, precision=precision)
                ):
                    outcomes[number] = None
                else:
                    outcome.counts["pairs that agree"] += 1
                    outcome.counts[f"pairs that agree, {draw.kind}"] += 1
    except Exception:  # noqa: BLE001  (what it is, is found when each is tried alone)
        return None
    return outcomes


def _prefix(number: int) -> str:
    return f"g{number}_"


def joined(models: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
    """One model with all graphs, whose names begin with ``g0_``, ``g1_`` and so on."""
    whole = onnx.ModelProto()
    whole.CopyFrom(models[0])
    whole.graph.ClearField("value_info")
    fields = ("node", "input", "output", "initializer")
    for name in fields:
        whole.graph.ClearField(name)
    for number, model in enumerate(models):
        own = GraphProto()
        own.CopyFrom(model.graph)
        _rename(own, _prefix(number))
        for name in fields:
            getattr(whole.graph, name).extend(getattr(own, name))
    return whole


def _rename(graph: GraphProto, prefix: str) -> None:
    for named in (*graph.input, *graph.output, *graph.initializer):
        named.name = prefix + named.name
    for value in graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = prefix + dim.dim_param
    for node in graph.node:
        node.name = prefix + node.name
        for names in (node.input, node.output):
            names[:] = [prefix + name if name else "" for name in names]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, prefix)
