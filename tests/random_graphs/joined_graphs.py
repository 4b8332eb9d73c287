"""Many random graphs as one model, which takes less time than one at a time.

They share nothing but the program and its arena, so that what one of them computes is overwritten
by the others. Their nodes take turns, so that values of many graphs are alive at a time. A graph
that is refused, or whose results are not those of ONNX Runtime, is left to be tried alone.
"""

import random
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from kept_schedules import kept_schedules
from onnx import GraphProto, NodeProto
from special_inputs import Draw, draws
from trial import Case, Finding, Outcome, compile_case

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


@dataclass(frozen=True)
class Differing:
    """A graph whose results were others than ONNX Runtime's, and the program that it was part of.

    Where it is right alone, the program is wrong.
    """

    program: Case
    finding: Finding


def try_together(cases: Sequence[Case], inputs: int) -> list[Outcome | Differing | None]:
    """Compiles and runs graphs as few programs; None for each that was refused with others.

    Those of one program have the same operator set, optimisation level and options of passes.
    """
    alike: dict[str, list[int]] = {}
    parts = [_part(case, inputs) for case in cases]
    for number, part in enumerate(parts):
        if part is not None:
            case, operators = part.case, part.model.opset_import[0].version
            key = f"{operators} {case.opt_level} {case.pass_config}"
            alike.setdefault(key, []).append(number)
    found: list[Outcome | Differing | None] = [None] * len(cases)
    with kept_schedules():
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


def _tried(parts: Sequence[_Part]) -> list[Outcome | Differing | None]:
    """What cannot be compiled or run is left out if the error names it, else found by halves."""
    outcomes = _ran(parts)
    if not isinstance(outcomes, Exception):
        return outcomes
    if len(parts) == 1:
        return [None]
    named = _named_by(outcomes)
    if named and len(named) < len(parts):
        others = iter(_tried([part for n, part in enumerate(parts) if n not in named]))
        return [None if n in named else next(others) for n in range(len(parts))]
    middle = len(parts) // 2
    return _tried(parts[:middle]) + _tried(parts[middle:])


def _named_by(error: Exception) -> set[int]:
    """The numbers of the graphs with the names that an error says were found."""
    found, _, _ = str(error).partition("; expected")
    return {int(number) for number in re.findall(r"\bg(\d+)_", found)}


def _ran(parts: Sequence[_Part]) -> list[Outcome | Differing | None] | Exception:
    """The error where the program refuses something."""
    model = joined([part.model for part in parts], random.Random(parts[0].case.seed))
    outcomes: list[Outcome | Differing | None] = [Outcome() for _ in parts]
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
                outcome = outcomes[number]
                if not isinstance(outcome, Outcome):
                    continue
                got = {name: results[f"{_prefix(number)}{name}"] for name in wanted}
                compared = compare(got, wanted, precision=part.precision)
                wrong = next((one for one in compared if not one.ok), None)
                if wrong is None:
                    outcome.counts["pairs that agree"] += 1
                    outcome.counts[f"pairs that agree, {draw.kind}"] += 1
                    continue
                whole = replace(parts[0].case, model=model.SerializeToString(), inputs=given)
                said = f"'{_prefix(number)}{wrong.name}' {wrong.reason}"
                finding = Finding("difference among others", "", draw.kind, said, given)
                outcomes[number] = Differing(whole, finding)
    except Exception as error:  # noqa: BLE001  (what it is, is found when each is tried alone)
        return error
    return outcomes


def _prefix(number: int) -> str:
    return f"g{number}_"


def joined(models: Sequence[onnx.ModelProto], rng: random.Random) -> onnx.ModelProto:
    """One model with all graphs, whose names begin with ``g0_``, ``g1_`` and so on.

    A node of any graph that has one left is next.
    """
    whole = onnx.ModelProto()
    whole.CopyFrom(models[0])
    whole.graph.ClearField("value_info")
    fields = ("node", "input", "output", "initializer")
    for name in fields:
        whole.graph.ClearField(name)
    nodes: list[Iterator[NodeProto]] = []
    turns: list[int] = []
    for number, model in enumerate(models):
        own = GraphProto()
        own.CopyFrom(model.graph)
        _rename(own, _prefix(number))
        for name in fields[1:]:
            getattr(whole.graph, name).extend(getattr(own, name))
        nodes.append(iter(own.node))
        turns += [number] * len(own.node)
    rng.shuffle(turns)
    whole.graph.node.extend(next(nodes[number]) for number in turns)
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
