"""Reduces a model that fails a check to its fewest nodes that still fail alike."""

import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

from tvm_ext.api import TargetSource
from tvm_ext.check.check import check_request
from tvm_ext.check.inputs import INPUT_ENDINGS, inputs_for, write_inputs
from tvm_ext.check.reference import run_reference
from tvm_ext.check.request import CheckRequest
from tvm_ext.check.result import CheckResult, describe
from tvm_ext.check.tolerance import worst
from tvm_ext.configs.atomic_file import check_writable
from tvm_ext.configs.progress import tell
from tvm_ext.errors import (
    REPORT_IT,
    UNEXPECTED,
    ConfigError,
    InputError,
    ReferenceUnavailableError,
    TargetError,
    TvmExtError,
)
from tvm_ext.onnx_frontend import read_model
from tvm_ext.onnx_frontend.host.values import value_spec
from tvm_ext.onnx_frontend.onnx_graph import nodes_within, operator_key
from tvm_ext.onnx_frontend.signature import model_inputs
from tvm_ext.onnx_frontend.submodel import (
    Submodel,
    Submodels,
    nodes_behind,
    typed_model,
    with_types,
)
from tvm_ext.onnx_frontend.weights import StoredWeights, write_model
from tvm_ext.tuning.worker import ForkedWorker, WorkerFailure, WorkerTimeout, WorkRaised

# Seconds that one compilation and run may take before they count as hanging.
TIME_LIMIT = 600.0

Kind = Literal["difference", "refusal", "defect", "crash", "timeout"]

# What is no fault of the model: it is raised.
_NOT_REDUCED = (InputError, TargetError, ConfigError, ReferenceUnavailableError)
_TEXT_THAT_VARIES = re.compile(r"'[^']*'|\([^)]*\)|\[[^\]]*\]|\d+")


@dataclass(frozen=True)
class Failure:
    """How a model fails a check.

    Attributes
    ----------
    kind : str
        "difference" from ONNX Runtime, "refusal" of the model, "defect" (an error that nothing
        expects), "crash" of the process or "timeout".
    message : str
        One line about it.
    like : str
        What is the same for failures that are alike: for errors their classes and how their
        messages begin, for differences whether numbers differ, or types and shapes.
    outputs : tuple[str, ...]
        The outputs that differ, the first with the largest difference.
    """

    kind: Kind
    message: str
    like: str = ""
    outputs: tuple[str, ...] = ()

    def is_like(self, other: "Failure") -> bool:
        """Whether both are of one kind, and what counts of it is the same."""
        return (self.kind, self.like) == (other.kind, other.like)


@dataclass(frozen=True)
class Reduction:
    """What became of a model.

    Attributes
    ----------
    result : CheckResult or None
        Of the whole model; None where it fails otherwise than by a difference.
    failure : Failure or None
        How the whole model fails; None if it agrees with ONNX Runtime, and nothing was written.
    path, inputs : Path or None
        The files of the reduced model and of its inputs; no file of inputs where it takes none.
    input_shapes : mapping of input name to sizes
        What has to be given for the reduced model, of what was given for the whole one.
    nodes : int
        How many the whole model has, those in bodies of If, Loop and Scan included.
    operators : dict[str, int]
        Those of the reduced model.
    candidates : int
        How many models were compiled on the way.
    """

    result: CheckResult | None
    failure: Failure | None = None
    path: Path | None = None
    inputs: Path | None = None
    input_shapes: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    nodes: int = 0
    operators: dict[str, int] = field(default_factory=dict)
    candidates: int = 0

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "ok": self.failure is None,
            "failure": self.failure.kind if self.failure else None,
            "message": self.failure.message if self.failure else "",
            "model": str(self.path) if self.path else None,
            "inputs": str(self.inputs) if self.inputs else None,
            "input_shapes": {name: list(sizes) for name, sizes in self.input_shapes.items()},
            "nodes": self.nodes,
            "nodes_left": sum(self.operators.values()),
            "operators": self.operators,
            "candidates": self.candidates,
            "check": self.result.to_dict() if self.result else None,
        }

    def sentences(self) -> list[str]:
        """What was done, one line each."""
        if self.failure is None:
            return ["There is nothing to reduce: no file was written."]
        listed = ", ".join(
            name if count == 1 else f"{count} {name}" for name, count in self.operators.items()
        )
        beside = f" and its inputs {self.inputs}" if self.inputs else ""
        command = ["tvm-ext", "check", str(self.path)]
        command += ["--inputs", str(self.inputs)] if self.inputs else []
        for name, sizes in self.input_shapes.items():
            command += ["--input-shape", f"{name}={','.join(map(str, sizes))}"]
        return [
            f"Reduced from {self.nodes} nodes to {sum(self.operators.values())} ({listed}) with "
            f"the same kind of failure; {self.candidates} models were tried.",
            f"Wrote {self.path}{beside}. To check it, with the other options of this check:",
            f"  {shlex.join(command)}",
        ]


def reduce_model(
    source: str | Path | onnx.ModelProto,
    path: str | Path,
    target: TargetSource = "cpu",
    *,
    inputs: Mapping[str, Any] | Path | None = None,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    time_limit: float = TIME_LIMIT,
    **options: Any,
) -> Reduction:
    """Checks a model. If it fails, writes the smallest part of it that fails in the same way.

    Nodes are left out in ever smaller groups (delta debugging), as long as the rest fails in the
    same way. The values that those nodes computed become inputs, with the values of ONNX Runtime.
    If only an If, a Loop or a Scan is left, its body is reduced next. Every model is compiled and
    run in a forked copy of this process. The copy has the passes that are registered here, and it
    may crash or hang without harm to this process.

    Parameters
    ----------
    source, target, inputs, seed, sizes, options
        As for ``check_model``.
    path : str or Path
        The file of the reduced model. Its inputs are written beside it, under the same name with
        the ending ``.npz`` or ``.json``.
    time_limit : float
        Time in seconds after which a model counts as hanging.

    Returns
    -------
    Reduction

    Raises
    ------
    OutputPathError
        One of the files cannot be written.
    TvmExtError
        The model, the inputs or the options cannot be read, ONNX Runtime cannot run the model, or
        the failure does not come back in a copy of the model.
    """
    path = Path(path)
    for written in (path, *(path.with_suffix(ending) for ending in INPUT_ENDINGS)):
        check_writable(written)
    request = CheckRequest.of(source, target, **options)
    sized = read_model(source, request.input_shapes)
    whole = typed_model(sized)
    specs = [value_spec(value, sized.ranges) for value in model_inputs(whole.graph)]
    values = inputs_for(specs, inputs, seed, sizes)
    values |= {
        s.name: np.asarray(values[s.name]) for s in specs if s.is_tensor and s.name in values
    }
    nodes = sum(_operators(whole).values())
    with tempfile.TemporaryDirectory(prefix="tvm-ext-reduce-") as folder:
        trials = _Trials(ForkedWorker(), request, time_limit, Path(folder))
        try:
            tell("the whole model")
            result, failure = trials.outcome(request, values)
            if failure is None:
                return Reduction(result, nodes=nodes, candidates=trials.count)
            left = _reduced(whole, values, sized.stored, failure, trials)
        finally:
            trials.worker.stop()
    if left is None:
        raise TvmExtError(
            f"{sized.name} fails ({failure.kind}), and a copy of its graph with the same inputs "
            "does not fail in the same way; expected the same failure: look for the cause with "
            "--bisect or --all-values"
        )
    # The inputs first: a model that is there can be checked.
    beside = write_inputs(path, left.inputs)
    operators, shapes = _operators(left.model), _shapes_given(left, request)
    write_model(left.model, path)
    return Reduction(result, failure, path, beside, shapes, nodes, operators, trials.count)


def _operators(model: onnx.ModelProto) -> dict[str, int]:
    """How many of each there are, those in bodies too, but for constants."""
    counts = Counter(map(operator_key, nodes_within(model.graph)))
    del counts["Constant"]
    return dict(counts)


# Models are tried in another process.


def _outcome(request: CheckRequest, inputs: Mapping[str, Any] | Path) -> CheckResult | Failure:
    """The check, or the error that it ends with."""
    try:
        return check_request(request, inputs)
    except _NOT_REDUCED:
        raise
    except TvmExtError as error:
        kind: Kind = "defect" if error.defect else "refusal"
        return Failure(kind, str(error), _kinship(error, request.source))
    except Exception as error:  # noqa: BLE001
        # Whatever it is, it is what the model is reduced to.
        message = f"{UNEXPECTED}: {REPORT_IT}"
        return Failure("defect", message, _kinship(error, request.source))


def _kinship(error: Exception, source: str | Path | onnx.ModelProto) -> str:
    """The classes of an error and of its first cause, and how its message begins.

    Names and numbers in it vary with what is left of the model, as does what it is called.
    """
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = str(error)
    if not isinstance(source, onnx.ModelProto):
        text = text.removeprefix(str(source)).removeprefix(Path(source).stem)
    words = _TEXT_THAT_VARIES.sub("", text).strip(" :")
    head = " ".join(re.split("[:;\n]", words)[0].split())
    return f"{type(error).__name__} {type(cause).__name__} {head}"


def _difference(result: CheckResult) -> Failure | None:
    wrong = [output for output in result.outputs if not output.ok]
    if not wrong:
        return None
    furthest = worst(wrong)
    names = dict.fromkeys([furthest.name, *(output.name for output in wrong)])
    like = "types or shapes" if furthest.max_abs != furthest.max_abs else "numbers"
    return Failure("difference", describe(furthest), like, tuple(names))


@dataclass
class _Trials:
    """Tries models one after the other, in a process that is replaced when one ends it.

    ``folder`` is for their files, and ``count`` says how many there were.
    """

    worker: ForkedWorker
    request: CheckRequest
    time_limit: float
    folder: Path
    count: int = 0

    def outcome(
        self, request: CheckRequest, inputs: Mapping[str, Any] | Path
    ) -> tuple[CheckResult | None, Failure | None]:
        """What the check finds, and how it fails; raises one of ``_NOT_REDUCED``."""
        self.count += 1
        try:
            found = self.worker.call(_outcome, request, inputs, timeout=self.time_limit)
        except WorkRaised as error:
            classes = {one.__name__: one for one in _NOT_REDUCED}
            raise classes.get(error.kind, InputError)(str(error)) from error
        except WorkerTimeout as error:
            message = (
                f"to compile and run the model {error}; expected a result by then: allow more with "
                f"--time-limit, or {REPORT_IT}"
            )
            return None, Failure("timeout", message)
        except WorkerFailure as error:
            message = f"while it compiled or ran the model {error}; expected a result: {REPORT_IT}"
            return None, Failure("crash", message)
        return (None, found) if isinstance(found, Failure) else (found, _difference(found))

    def failure(self, submodel: Submodel) -> Failure | None:
        """How a sub-model fails when it is read from files, as a user's command does."""
        tell(f"model {self.count + 1}: {len(submodel.places)} nodes")
        path = self.folder / "tvm_ext_candidate.onnx"
        write_model(submodel.model, path)
        inputs: Mapping[str, Any] | Path = write_inputs(path, submodel.inputs) or {}
        shapes = _shapes_given(submodel, self.request)
        try:
            return self.outcome(replace(self.request, source=path, input_shapes=shapes), inputs)[1]
        except _NOT_REDUCED:
            return None

    def values(self, submodel: Submodel) -> dict[str, Any]:
        """The outputs of a sub-model in ONNX Runtime; none where that cannot run it."""
        path = self.folder / "tvm_ext_values.onnx"
        write_model(submodel.model, path)
        limit = self.time_limit
        try:
            return dict(self.worker.call(_as_it_stands, path, submodel.inputs, timeout=limit))
        except WorkerFailure:
            return {}


def _as_it_stands(path: Path, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return run_reference(path, inputs, optimise=False)


def _shapes_given(submodel: Submodel, request: CheckRequest) -> dict[str, Sequence[int | str]]:
    """Of the sizes that the user gave those that still name an input; the model has the others."""
    if submodel.frozen:
        return {}
    shapes = request.input_shapes or {}
    return {name: sizes for name, sizes in shapes.items() if name in submodel.inputs}


# The reduction.


def minimise(
    places: Sequence[int], attempt: Callable[[Sequence[int]], Sequence[int] | None]
) -> list[int]:
    """Leaves places out, in groups of a half down to one each, for as long as that can be done.

    Parameters
    ----------
    places : sequence of int
        Rising.
    attempt : Callable[[Sequence[int]], Sequence[int] | None]
        Which of some places can stay alone, rising; None if these cannot.

    Returns
    -------
    list[int]
        None of them can be left out alone.
    """
    left = list(places)
    size = max(len(left) // 2, 1)
    while True:
        start, before = 0, len(left)
        while start < len(left):
            fewer = left[:start] + left[start + size :]
            kept = attempt(fewer) if fewer else None
            if kept is None:
                start += size
            else:
                start = sum(place < left[start] for place in kept)
                left = list(kept)
        if size == 1 and len(left) == before:
            return left
        size = max(min(size, len(left)) // 2, 1)


def _reduced(
    whole: onnx.ModelProto,
    inputs: Mapping[str, Any],
    stored: StoredWeights,
    failure: Failure,
    trials: _Trials,
) -> Submodel | None:
    """The smallest sub-model that fails alike; None if not even the whole model does."""
    everything = Submodels(whole, inputs, stored)
    made = (name for node in everything.nodes for name in node.output if name)
    exposed = everything.all(made)
    if exposed is None:
        return None
    tell("values of the model in ONNX Runtime")
    values = {**trials.values(exposed), **inputs}
    for frozen, ends_only in product((True, False), repeat=2):
        submodels = Submodels(whole, values, stored, frozen, ends_only)
        search = _Search(submodels, failure, trials)
        places = search.attempt(range(len(submodels.nodes)))
        if places is not None:
            break
    else:
        return None
    places = minimise(places, search.attempt)
    body = submodels.of_body(places[0]) if len(places) == 1 else None
    inside = body and _reduced(
        with_types(body.model), body.inputs, StoredWeights(), failure, trials
    )
    return inside or submodels.of(places)


@dataclass
class _Search:
    """Asks of sub-models whether they fail alike, of each once."""

    submodels: Submodels
    wanted: Failure
    trials: _Trials
    refuted: set[tuple[int, ...]] = field(default_factory=set)

    def attempt(self, places: Sequence[int]) -> Sequence[int] | None:
        """Those of the nodes that are left when they fail alike; None when they do not."""
        submodel = self.submodels.of(places)
        if submodel is None or submodel.places in self.refuted:
            return None
        failure = self.trials.failure(submodel)
        if failure is None or not failure.is_like(self.wanted):
            self.refuted.add(submodel.places)
            return None
        # What only other outputs depend on, which agree or differ less.
        nodes = [self.submodels.nodes[place] for place in submodel.places]
        behind = nodes_behind(nodes, failure.outputs[:1])
        shorter = None
        if 0 < len(behind) < len(nodes):
            shorter = self.attempt([submodel.places[index] for index in behind])
        return shorter or submodel.places
