"""Tries one random graph: compiled with all passes and without one, on many inputs."""

import random
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from arithmetic_operators import ARITHMETIC
from control_flow import CONTROL_FLOW
from dynamic_sizes import with_dynamic_sizes
from graph_builder import GraphForm, NotApplicable, RandomGraph, build_graph, draw_form
from memory_operators import FEW_KERNELS, MEMORY, ROWS, SHAPES
from nnsmith_graphs import build_nnsmith_graph
from open_results import has_open_node_in_a_body, watched_values, with_outputs
from spatial_operators import SPATIAL
from special_inputs import Draw, draws, moved, moved_model
from unoptimised import HOST

import tvm_ext
from tvm_ext.check.reference import ReferenceSession
from tvm_ext.check.tolerance import OutputDifference, compare
from tvm_ext.configs.errors import DefectWarning
from tvm_ext.errors import ReferenceUnavailableError, TvmExtError
from tvm_ext.onnx_frontend.submodel import value_precision, with_types
from tvm_ext.passes.pipeline import REQUIRED, STAGES, load_pipelines

STATIC, DYNAMIC, CONTROL, MEMORY_PLANS = "static", "dynamic", "control flow", "memory"
NNSMITH = "nnsmith"
SOURCES = (STATIC, DYNAMIC, CONTROL, MEMORY_PLANS, NNSMITH)

# Without the first nothing is promised of NaN, and without the second nothing of sizes that a model
# cannot combine: they read whatever is behind a tensor.
_PROMISES = ("PropagateNan", "CheckBounds")

# How many of the graphs have sizes that a run decides.
_DYNAMIC = {DYNAMIC: 1.0, CONTROL: 0.3, MEMORY_PLANS: 0.5}
_WITHOUT_FUSION = 0.8

# So many graphs for plans of memory, one after the other, are of one family and can be one program.
# Most have the same kernels, so that the time of a campaign goes to plans and not to code.
_FAMILY = 200
# So many have any shape and any operator.
_ANY_KERNEL = 0.05

# What is counted of a program and an input whose outputs were compared with ONNX Runtime's.
COMPARED = ("pairs that agree", "pairs that fail", "pairs whose result a change of 1e-6 changes")

# Outputs whose largest magnitude is smaller than this are measured by it.
_LEAST_SCALE = 1e-2


@dataclass(frozen=True)
class Case:
    """A model, the inputs and the dynamic sizes that it was built with, and how it is compiled."""

    source: str
    seed: str
    model: bytes
    inputs: dict[str, np.ndarray]
    sizes: dict[str, int]
    pass_config: dict[str, dict[str, Any]] = field(default_factory=dict)
    opt_level: str = "O3"


@dataclass(frozen=True)
class Finding:
    """One failure.

    Attributes
    ----------
    kind : str
        "difference", "shapes", "defect" (an error that nothing expects) or "refused run".
    left_out : str
        The pass that was left out; empty where all ran.
    numbers : str
        The kind of numbers of the inputs; empty where nothing ran.
    message : str
        One line.
    inputs : dict of str to array
        The inputs of the run.
    """

    kind: str
    left_out: str
    numbers: str
    message: str
    inputs: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class Outcome:
    """What became of one graph.

    Attributes
    ----------
    counts : Counter of str
        Pairs of a graph and an input that agree, that were refused, and so on.
    left_out : str
        The pass that was left out in the second program; empty where no optional pass acted.
    findings : list of Finding
        At most one for each program and kind of numbers.
    """

    counts: Counter[str] = field(default_factory=Counter)
    left_out: str = ""
    findings: list[Finding] = field(default_factory=list)

    def agrees(self) -> bool:
        """Whether something was compared, and nothing was found that is not as it should be."""
        others = self.counts.keys() & set(COMPARED[1:])
        return bool(self.counts["pairs that agree"]) and not others and not self.findings


def build_case(source: str, seed: str, poison: bool = False) -> Case | None:
    """The graph of a source and a seed; None where none could be drawn.

    With ``poison`` its program fills what is free of its arena with NaN. Most are compiled without
    fusion then, which leaves graphs as small as these without buffers.
    """
    rng = random.Random(f"{source} {seed}")
    family = _family(source, seed) if source == MEMORY_PLANS else None
    try:
        graph = _graph(source, rng, family)
    except NotApplicable:
        return None
    model, sizes = graph.model, {}
    share = _DYNAMIC.get(source, 0.0)
    if share == 1 or (share and rng.random() < share):
        model, sizes = with_dynamic_sizes(graph, rng)
    # Of graphs as small as these no convolution is worth another layout.
    options: dict[str, dict[str, Any]] = {}
    level = "O3"
    if (rng if family is None else random.Random(family.position)).random() < 0.5:
        options["LayoutPlanning"] = {"layout": "channels_last"}
    if poison:
        options["ShareStorage"] = {"poison": True}
        share = family.position if family else rng.random()
        level = "O0" if share < _WITHOUT_FUSION else level
    if level == "O0":
        options.pop("LayoutPlanning", None)
    return Case(source, seed, model.SerializeToString(), graph.inputs, sizes, options, level)


@dataclass(frozen=True)
class _Family:
    """What graphs have in common; ``position``, from 0 to 1, decides how they are compiled."""

    form: GraphForm
    shapes: Sequence[Sequence[int]]
    position: float


def _family(source: str, seed: str) -> _Family:
    campaign, _, number = seed.rpartition(":")
    rng = random.Random(f"family {source} {campaign}:{int(number) // _FAMILY}")
    return _Family(draw_form(rng), rng.choice(ROWS), rng.random())


def _graph(source: str, rng: random.Random, family: _Family | None) -> RandomGraph:
    if source == NNSMITH:
        return build_nnsmith_graph(rng)
    operators = ARITHMETIC + SPATIAL
    if family is not None:
        # Fewer, since each is several nodes.
        if rng.random() < _ANY_KERNEL:
            return build_graph(rng, MEMORY * 4 + operators, SHAPES, 6, family.form)
        return build_graph(rng, MEMORY + FEW_KERNELS, family.shapes, 6, family.form)
    # A third of all operators, since most others change a shape.
    return build_graph(rng, operators + CONTROL_FLOW * 12 if source == CONTROL else operators)


def optional_passes() -> list[str]:
    """The passes of the default level that can be left out, without those of ``_PROMISES``."""
    level = load_pipelines()["O3"]
    names = dict.fromkeys(name for stage in STAGES for name in getattr(level, stage))
    return [name for name in names if name not in REQUIRED and name not in _PROMISES]


def try_case(case: Case, inputs: int, left_out_before: Mapping[str, int]) -> Outcome:
    """Compiles and runs a case.

    ``left_out_before`` says how often each pass was left out already: of those that act on this
    graph the one that was left out least is next. It is empty where none is to be left out.
    """
    model = onnx.load_from_string(case.model)
    outcome = Outcome()
    watched = watched_values(model.graph)
    try:
        reference = ReferenceSession(
            with_outputs(model, {name for group in watched for name in group}),
            threads=1,
            optimise=False,
        )
    except ReferenceUnavailableError:
        outcome.counts["graphs that ONNX Runtime refuses"] += 1
        return outcome
    rng = random.Random(f"inputs {case.source} {case.seed}")
    drawn = draws(model, case.inputs, case.sizes, inputs, rng)
    runs = _references(model, reference, drawn, outcome)
    compiled = _compiled(case, "", outcome)
    if compiled is None:
        return outcome
    programs = {"": compiled}
    acting = {one.name for one in compiled.report.passes if one.changed}
    known = {name: count for name, count in left_out_before.items() if name in acting}
    if known:
        outcome.left_out = min(known, key=lambda name: (known[name], name))
        without = _compiled(case, outcome.left_out, outcome)
        if without is not None:
            programs[outcome.left_out] = without
    trial = _Trial(model, outcome)
    for draw, wanted in runs:
        for left_out, program in programs.items():
            trial.run(program, left_out, draw, wanted)
    return outcome


def _references(
    model: onnx.ModelProto, reference: ReferenceSession, drawn: Sequence[Draw], outcome: Outcome
) -> list[tuple[Draw, dict[str, np.ndarray] | None]]:
    """Each draw with ONNX Runtime's outputs; None where it refuses the inputs."""
    found: list[tuple[Draw, dict[str, np.ndarray] | None]] = []
    names = [value.name for value in model.graph.output]
    watched = watched_values(model.graph)
    hidden = has_open_node_in_a_body(model.graph)
    for draw in drawn:
        try:
            values = reference.run(draw.arrays)
        except ReferenceUnavailableError:
            found.append((draw, None))
            continue
        known = {**draw.arrays, **values}
        endless = {name for name, array in known.items() if not _is_finite(array)}
        if (hidden and endless & draw.arrays.keys()) or any(map(endless.issuperset, watched)):
            outcome.counts["inputs whose result ONNX leaves open"] += 1
            continue
        found.append((draw, {name: values[name] for name in names}))
    return found


def _is_finite(array: np.ndarray) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def compile_case(
    model: onnx.ModelProto, case: Case, disabled: Sequence[str] = ()
) -> tvm_ext.CompiledModel:
    """A program of ``model`` with the options of a case, without some passes."""
    return tvm_ext.compile(
        model,
        HOST,
        opt_level=case.opt_level,
        disabled_passes=disabled,
        pass_config=case.pass_config,
    )


def _compiled(case: Case, left_out: str, outcome: Outcome) -> tvm_ext.CompiledModel | None:
    model = onnx.load_from_string(case.model)
    disabled = (left_out,) if left_out else ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DefectWarning)
            return compile_case(model, case, disabled)
    except TvmExtError as error:
        if not error.defect:
            outcome.counts["graphs that tvm-ext refuses"] += 1
            return None
        message = str(error)
    except Exception as error:  # noqa: BLE001  (whatever it is, it is what is looked for)
        message = f"{type(error).__name__}: {error}"
    outcome.findings.append(Finding("defect", left_out, "", _one_line(message)))
    return None


class _Trial:
    """Runs the programs of one model, and keeps the first finding of each sort."""

    def __init__(self, model: onnx.ModelProto, outcome: Outcome) -> None:
        self._model = model
        self._outcome = outcome
        self._precision = value_precision(with_types(model).graph)
        self._seen: set[tuple[str, str, str]] = set()

    def run(
        self,
        program: tvm_ext.CompiledModel,
        left_out: str,
        draw: Draw,
        wanted: dict[str, np.ndarray] | None,
    ) -> None:
        """One pair of a program and an input."""
        counts = self._outcome.counts
        try:
            got = program.run(draw.arrays)
        except TvmExtError as error:
            if wanted is None or draw.sizes:
                # Sizes that do not fit each other; which ones, both may see differently.
                counts["inputs refused" if wanted is None else "inputs that tvm-ext refuses"] += 1
                return
            self._found("refused run", left_out, draw, str(error))
            return
        except Exception as error:  # noqa: BLE001
            self._found("defect", left_out, draw, f"{type(error).__name__}: {error}")
            return
        if wanted is None:
            counts["inputs that ONNX Runtime refuses"] += 1
            return
        found = compare(got, wanted, precision=self._precision)
        wrong = [one for one in found if not one.ok and not _is_small(one)]
        if not wrong:
            counts["pairs that agree"] += 1
            counts[f"pairs that agree, {draw.kind}"] += 1
            return
        stable = self._stable(draw, wanted)
        told = [one for one in wrong if one.name in stable]
        if not told:
            counts["pairs whose result a change of 1e-6 changes"] += 1
            return
        first = told[0]
        kind = (
            "shapes" if first.max_abs != first.max_abs and not first.worst_index else "difference"
        )
        self._found(kind, left_out, draw, f"'{first.name}' {first.reason}")

    def _stable(self, draw: Draw, wanted: dict[str, np.ndarray]) -> set[str]:
        """Outputs that ONNX Runtime leaves as they are where inputs move by rounding."""
        names = set(wanted)
        for sign in (1, -1):
            try:
                session = ReferenceSession(moved_model(self._model, sign), 1, optimise=False)
                other = session.run(moved(draw.arrays, sign))
            except ReferenceUnavailableError:
                continue
            # A tenth: rounding inside of the graph adds to that of the inputs.
            near = compare(other, wanted, precision=self._precision)
            names &= {one.name for one in near if one.ok and one.max_rel <= one.tolerance / 10}
        return names

    def _found(self, kind: str, left_out: str, draw: Draw, message: str) -> None:
        self._outcome.counts["pairs that fail"] += 1
        if (kind, left_out, draw.kind) in self._seen:
            return
        self._seen.add((kind, left_out, draw.kind))
        line = _one_line(message)
        self._outcome.findings.append(Finding(kind, left_out, draw.kind, line, draw.arrays))


def _is_small(one: OutputDifference) -> bool:
    """Whether a difference is rounding of values from which nearly nothing is left.

    The tail of GELU is the difference of two numbers near 1: none of its digits is sure.
    """
    return one.tolerance > 0 and one.max_abs <= one.tolerance * _LEAST_SCALE


def _one_line(text: str) -> str:
    return " ".join(text.split())[:400]
