"""Finds where a difference comes from: the preparation, a pass, a kernel's schedule, a node."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tvm_ext.check.cuts import (
    CANNOT_RUN,
    Cut,
    SteppedCompilation,
    changed_kernels,
    with_kernels_of,
)
from tvm_ext.check.findings import Bisection, StepFinding
from tvm_ext.check.nodes import find_node
from tvm_ext.check.reference import run_reference
from tvm_ext.check.request import CheckRequest
from tvm_ext.check.search import last_agreement
from tvm_ext.check.tolerance import OutputDifference, compare, worst
from tvm_ext.errors import TvmExtError
from tvm_ext.onnx_frontend import ImportedModel, import_prepared, prepare_model
from tvm_ext.onnx_frontend.expose import value_precision, with_types
from tvm_ext.passes.pipeline import REQUIRED

Arrays = Mapping[str, np.ndarray]

# A difference of up to this many times ONNX Runtime's own is called its like.
_SPREADS = 2.0


def find_causes(
    request: CheckRequest, inputs: Arrays, reference: Arrays, difference: OutputDifference
) -> Bisection:
    """Where the difference between a compiled model and ``reference`` comes from.

    Parameters
    ----------
    request : CheckRequest
        The model and how it is compiled.
    inputs, reference : mapping of name to array
        Inputs, and ONNX Runtime's outputs for them.
    difference : OutputDifference
        The worst of what the compiled model computed.

    Raises
    ------
    TvmExtError
        The model cannot be compiled, or ONNX Runtime cannot run it.
    """
    name, model, prepared, ranges, stored, _ = prepare_model(request.source, request.input_shapes)
    judge = _Judge(inputs, reference, request.rtol, value_precision(with_types(prepared).graph))
    plain = run_reference(request.source, inputs, optimise=False)
    # What counts is the distance, not whether it is allowed.
    spread = max(d.max_rel for d in compare(plain, reference, np.inf))
    result = Bisection(reference_spread=spread)
    if difference.max_rel <= _SPREADS * spread:
        result.notes.append(
            f"the difference of {difference.max_rel:.1e} is about as large as that between ONNX "
            "Runtime with and without its optimisations: it may be rounding only"
        )
    prepared_outputs = run_reference(prepared, inputs, optimise=False)
    of_prepared = worst(compare(prepared_outputs, plain, request.rtol, judge.precision))
    if not of_prepared.ok:
        result.preparation = of_prepared
        return result
    imported = import_prepared(name, model, prepared, ranges, stored)
    compilation = SteppedCompilation(imported, request.machine, request.pipeline())
    result.step, notes = _find_step(compilation, judge)
    result.notes += notes
    result.remedies = [
        candidate
        for candidate in _removable(compilation.cuts, result.step)
        if _agrees_without(candidate, request, imported, judge)
    ]
    result.node, notes = find_node(request, name, prepared, inputs)
    result.notes += notes
    return result


class _Judge:
    """Says of a program how far it is from the reference."""

    def __init__(
        self, inputs: Arrays, reference: Arrays, rtol: float | None, precision: Mapping[str, str]
    ) -> None:
        self.precision = precision
        self._inputs = inputs
        self._reference = reference
        self._rtol = rtol

    def worst_of(self, outputs: Arrays) -> OutputDifference:
        return worst(compare(outputs, self._reference, self._rtol, self.precision))

    def of_cut(self, compilation: SteppedCompilation, cut: Cut) -> OutputDifference | None:
        """The worst output of the program that a cut makes; None when it makes none."""
        try:
            outputs = compilation.finish(cut.mod, cut.stage).run(self._inputs)
        except CANNOT_RUN:
            # Between two passes that belong together a module need not be one that can run.
            return None
        return self.worst_of(outputs)


def _find_step(
    compilation: SteppedCompilation, judge: _Judge
) -> tuple[StepFinding | None, list[str]]:
    cuts = [cut for cut in compilation.cuts if cut.changed]
    found = {p: judge.of_cut(compilation, cuts[p]) for p in (0, len(cuts) - 1)}
    base, end = found[0], found[len(cuts) - 1]
    if end is None or end.ok:
        return None, ["compiled step by step the model agrees: the difference does not come back"]
    if base is None:
        return None, ["the imported graph cannot be run without passes: no pass can be named"]
    if not base.ok:
        return None, ["the imported graph already differs without any pass: no pass is at fault"]

    def agrees(position: int) -> bool | None:
        found[position] = judge.of_cut(compilation, cuts[position])
        difference = found[position]
        return None if difference is None else difference.ok

    low, high = last_agreement(len(cuts), agrees)
    before, after = found[low], found[high]
    if before is None or after is None:
        return None, ["no step can be named"]
    names = tuple(cut.name for cut in cuts[low + 1 : high + 1])
    finding = StepFinding(cuts[high].stage, names, cuts[high].source, before, after)
    if high - low == 1:
        finding = _with_kernel(finding, compilation, judge, cuts[low], cuts[high])
    return finding, []


def _with_kernel(
    finding: StepFinding, compilation: SteppedCompilation, judge: _Judge, before: Cut, after: Cut
) -> StepFinding:
    """The finding with the kernel at fault, when the step does nothing but rewrite kernels."""
    if after.stage not in ("schedule", "kernels", "tile"):
        return finding
    names = changed_kernels(before.mod, after.mod, compilation.calls)
    if not names:
        return finding

    def agrees(count: int) -> bool | None:
        mod = with_kernels_of(before.mod, after.mod, names[:count])
        difference = judge.of_cut(compilation, replace(after, mod=mod))
        return None if difference is None else difference.ok

    low, high = last_agreement(len(names) + 1, agrees)
    if high - low != 1:
        return finding
    kernel = names[low]
    nodes = [n for call in compilation.calls if call.kernel == kernel for n in call.origins]
    return replace(finding, kernel=kernel, kernel_nodes=tuple(dict.fromkeys(nodes)))


def _agrees_without(
    name: str, request: CheckRequest, imported: ImportedModel, judge: _Judge
) -> bool:
    try:
        pipeline = request.pipeline(without=[name])
        compilation = SteppedCompilation(imported, request.machine, pipeline)
    except TvmExtError:
        return False
    difference = judge.of_cut(compilation, compilation.cuts[-1])
    return difference is not None and difference.ok


def _removable(cuts: Sequence[Cut], step: StepFinding | None) -> list[str]:
    """Passes worth leaving out: those that were named, and those that are not ours or TVM's."""
    named = set(step.names) if step is not None else set()
    found = [
        cut.name
        for cut in cuts
        if cut.source not in ("compiler", "built-in", "tvm")
        or (cut.name in named and cut.source != "compiler")
    ]
    return [name for name in dict.fromkeys(found) if name not in REQUIRED]
