"""Finds where a difference comes from: the preparation, a pass or a kernel's schedule; a node."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm_ffi import structural_equal

from tvm_ext.check.intermediate_values import find_node
from tvm_ext.check.reference import run_reference
from tvm_ext.check.request import CANNOT_RUN, CheckRequest
from tvm_ext.check.result import Bisection, StepFinding
from tvm_ext.check.tolerance import SPREADS, OutputDifference, compare, worst
from tvm_ext.compiled_model import CompiledModel
from tvm_ext.compiler.backend import target_record, threads_of
from tvm_ext.compiler.build import build_program
from tvm_ext.compiler.compile_context import compiling
from tvm_ext.compiler.graph_analysis import kernel_calls, require_lowered
from tvm_ext.configs.progress import part_of
from tvm_ext.errors import TvmExtError
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.onnx_frontend import ImportedModel, import_prepared, prepare_model
from tvm_ext.onnx_frontend.submodel import (
    value_precision,
    with_types,
)
from tvm_ext.passes import registry
from tvm_ext.passes.pipeline import (
    REQUIRED,
    STAGES,
    PassStep,
    Pipeline,
    load_pipelines,
)
from tvm_ext.passes.runner import PassRunner
from tvm_ext.report.compile_report import CompileReport
from tvm_ext.report.records import KernelCall
from tvm_ext.tensor_spec import shapes_of
from tvm_ext.tir_schedules.backend import scheduling_of

# Binary search for the step where agreement ends, when some steps cannot be tried.


def last_agreement(count: int, agrees: Callable[[int], bool | None]) -> tuple[int, int]:
    """Positions ``(low, high)``: ``low`` agrees, ``high`` differs, nothing between is known.

    Position 0 is taken to agree and position ``count - 1`` to differ. A step that differs and is
    put right by a later one does not mislead: agreement does end between the two that come back.

    Parameters
    ----------
    count : int
        Number of positions, at least 2.
    agrees : Callable[[int], bool | None]
        Asked about positions in between, each once at most; None when it cannot tell.
    """
    low, high = 0, count - 1
    unknown: set[int] = set()
    while True:
        open_positions = [p for p in range(low + 1, high) if p not in unknown]
        if not open_positions:
            return low, high
        middle = open_positions[len(open_positions) // 2]
        with part_of(f"bisection, {high - low} steps left"):
            answer = agrees(middle)
        if answer is None:
            unknown.add(middle)
        elif answer:
            low = middle
        else:
            high = middle


# Runs a pipeline one step at a time, and turns the module after any step into a program.
#
# A module from the middle of the pipeline is finished with the passes of O0, no schedule and no
# reuse of storage: the plainest way to run it. What then differs was caused by a step before.

# These make kernels that expect their weights in another order, which no step of another cut does.
_LEFT_OUT = ("MarkConstantParameters", "PackWeights")


@dataclass(frozen=True)
class ModuleSnapshot:
    """The module as one step of the compilation left it.

    Attributes
    ----------
    stage : str
        That of the pass; "import" ahead of all.
    name : str
        The pass, or "import".
    source : str
        Where the pass comes from ("built-in", "tvm", "user", ...); "compiler" for the import.
    mod : tvm.IRModule
        The module after the step.
    changed : bool
        Whether the step changed the module.
    """

    stage: str
    name: str
    source: str
    mod: tvm.IRModule
    changed: bool


class SteppedCompilation:
    """One compilation, step by step.

    Attributes
    ----------
    cuts : list[ModuleSnapshot]
        The module after import and after every step that ran.
    calls : list[KernelCall]
        Which kernel computes which nodes.
    """

    def __init__(
        self, imported: ImportedModel, machine: MachineDescription, pipeline: Pipeline
    ) -> None:
        self._imported = imported
        self._machine = machine
        self._opt_level = pipeline.opt_level
        self.cuts = [ModuleSnapshot("import", "import", "compiler", imported.mod, True)]
        self._memory = pipeline.memory
        with compiling(machine):
            for stage in STAGES:
                self._run_passes(stage, getattr(pipeline, stage))
                if stage == "lower":
                    kernels = self.cuts[-1].mod
                    require_lowered(kernels, imported.name, shapes_of(imported.inputs))
        self.calls: list[KernelCall] = kernel_calls(kernels)

    def _run_passes(self, stage: str, steps: Sequence[PassStep]) -> None:
        for step in steps:
            if step.skipped or step.entry.name in _LEFT_OUT:
                continue
            runner = PassRunner()
            mod = runner.run([step], self.cuts[-1].mod)
            entry = step.entry
            self.cuts.append(
                ModuleSnapshot(stage, entry.name, entry.source, mod, runner.records[-1].changed)
            )

    def program(self) -> CompiledModel:
        """What the whole compilation makes."""
        return self.finish(self.cuts[-1])

    def finish(self, cut: ModuleSnapshot) -> CompiledModel:
        """A program from the module of a cut.

        Raises
        ------
        TvmExtError
            The module cannot be finished in the plain way; a later cut may be.
        """
        machine = self._machine
        with compiling(machine) as context:
            mod = PassRunner().run(self._finishing(cut), cut.mod)
            if cut.stage in ("import", "graph", "lower"):
                require_lowered(mod, self._imported.name, shapes_of(self._imported.inputs))
            mod = PassRunner().run(self._planning(cut), mod)
            program = build_program(mod, context.target, machine, mod, {})
        return CompiledModel(
            program=program.executable,
            inputs=self._imported.inputs,
            outputs=self._imported.outputs,
            target=target_record(machine),
            threads=threads_of(machine),
            report=CompileReport(
                model=self._imported.name, opt_level=self._opt_level, device=program.device
            ),
        )

    def _finishing(self, cut: ModuleSnapshot) -> list[PassStep]:
        """What makes kernels of a cut's module."""
        plain = load_pipelines()["O0"]
        lower = plain.lower if cut.stage in ("import", "graph", "lower") else []
        graph = plain.graph if cut.stage in ("import", "graph") else []
        return [PassStep(registry.get(name), {}) for name in (*graph, *lower)]

    def _planning(self, cut: ModuleSnapshot) -> list[PassStep]:
        """What makes a program of its kernels."""
        if cut.stage == "target":
            return []
        if cut.stage == "memory":
            names = [step.entry.name for step in self._memory]
            rest = self._memory[names.index(cut.name) + 1 :]
            return [step for step in rest if step.entry.required]
        names = load_pipelines()["O0"].memory
        scheduled = cut.stage == "tile" or cut.name in ("ScheduleKernels", "PlanWorkspaces")
        # A GPU runs no kernel whose loops are bound to no threads.
        if scheduling_of(self._machine).is_bound is not None and not scheduled:
            names = ["ScheduleKernels", *names]
        options: dict[str, dict[str, Any]] = {"ShareStorage": {"reuse": False}}
        return [PassStep(registry.get(name), options.get(name, {})) for name in names]


def changed_kernels(
    before: tvm.IRModule, after: tvm.IRModule, calls: Sequence[KernelCall]
) -> list[str]:
    """Kernels that differ, in the order of their first calls; none if other kernels are called."""
    old, new = _kernels(before), _kernels(after)
    if old.keys() != new.keys():
        return []
    order = list(dict.fromkeys([*(call.kernel for call in calls), *old]))
    return [n for n in order if n in old and not structural_equal(old[n], new[n])]


def with_kernels_of(
    before: tvm.IRModule, after: tvm.IRModule, names: Iterable[str]
) -> tvm.IRModule:
    """``before`` with the named kernels as they are in ``after``."""
    chosen = set(names)
    functions = {
        var: after[var.name_hint] if str(var.name_hint) in chosen else func
        for var, func in before.functions.items()
    }
    return tvm.IRModule(functions, attrs=before.attrs)


def _kernels(mod: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    return {
        str(var.name_hint): func
        for var, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
    }


Arrays = Mapping[str, np.ndarray]


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
    if difference.max_rel <= SPREADS * spread:
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
    compilation = SteppedCompilation(imported, request.machine, request.passes())
    result.step, notes = _find_step(compilation, judge)
    result.notes += notes
    result.remedies = [
        candidate
        for candidate in _removable(compilation.cuts, result.step)
        if _agrees_without(candidate, request, imported, judge)
    ]
    result.node, notes = find_node(request, inputs)
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

    def of_cut(
        self, compilation: SteppedCompilation, cut: ModuleSnapshot
    ) -> OutputDifference | None:
        """The worst output of the program that a cut makes; None when it makes none."""
        try:
            outputs = compilation.finish(cut).run(self._inputs)
        except CANNOT_RUN:
            # Between two passes that belong together a module need not be one that can run.
            return None
        return worst(compare(outputs, self._reference, self._rtol, self.precision))


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
    finding: StepFinding,
    compilation: SteppedCompilation,
    judge: _Judge,
    before: ModuleSnapshot,
    after: ModuleSnapshot,
) -> StepFinding:
    """The finding with the kernel at fault, when the step does nothing but rewrite kernels."""
    if after.stage not in ("schedule", "tile"):
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
        pipeline = request.passes(without=[name])
        compilation = SteppedCompilation(imported, request.machine, pipeline)
    except TvmExtError:
        return False
    with part_of(f"without {name}"):
        difference = judge.of_cut(compilation, compilation.cuts[-1])
    return difference is not None and difference.ok


def _removable(cuts: Sequence[ModuleSnapshot], step: StepFinding | None) -> list[str]:
    """Passes worth leaving out: those that were named, and those that are not ours or TVM's."""
    named = set(step.names) if step is not None else set()
    found = [
        cut.name
        for cut in cuts
        if cut.source not in ("compiler", "built-in", "tvm")
        or (cut.name in named and cut.source != "compiler")
    ]
    return [name for name in dict.fromkeys(found) if name not in REQUIRED]
