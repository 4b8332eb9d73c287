"""Runs a pipeline one step at a time, and turns the module after any step into a program.

A module from the middle of the pipeline is finished with the passes of O0, no schedule and no
reuse of storage: the plainest way to run it. What then differs was caused by a step before.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm_ffi import structural_equal

from tvm_ext.compiled_model import CompiledModel, target_record
from tvm_ext.compiler.graph_facts import require_lowered
from tvm_ext.compiler.kernel_calls import KernelCall, kernel_calls
from tvm_ext.compiler.memory import plan_memory
from tvm_ext.compiler.program import build_program
from tvm_ext.errors import TvmExtError
from tvm_ext.hardware.description import CpuDescription, Processor
from tvm_ext.hardware.targets import compiling_for
from tvm_ext.onnx_frontend import ImportedModel
from tvm_ext.open_dimensions import shapes_of
from tvm_ext.passes import registry
from tvm_ext.passes.pipeline import Pipeline, Step, load_pipelines
from tvm_ext.passes.runner import PassRunner
from tvm_ext.report.compile_report import CompileReport
from tvm_ext.tir_schedules.select import schedule_kernels

# Stages in the order of a compilation. "import", "kernels" and "memory" are steps of the compiler,
# the others hold passes.
STAGES = ("import", "graph", "lower", "schedule", "kernels", "tile", "memory", "target")

# What comes out of a module that cannot be built, or whose program fails: TVM's errors at run time
# have no base of their own.
CANNOT_RUN = (TvmExtError, tvm.error.InternalError, RuntimeError, ValueError, TypeError)


@dataclass(frozen=True)
class Cut:
    """The module as one step of the compilation left it.

    Attributes
    ----------
    stage : str
        One of ``STAGES``.
    name : str
        The pass, or what the compiler did.
    source : str
        Where the pass comes from ("built-in", "tvm", "user", ...); "compiler" for its own steps.
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
    cuts : list[Cut]
        The module after import and after every step that ran.
    calls : list[KernelCall]
        Which kernel computes which nodes.
    """

    def __init__(self, imported: ImportedModel, machine: Processor, pipeline: Pipeline) -> None:
        self._imported = imported
        self._machine = machine
        self._opt_level = pipeline.opt_level
        self.cuts = [Cut("import", "import", "compiler", imported.mod, True)]
        with compiling_for(machine):
            self._run_passes("graph", pipeline.graph)
            self._run_passes("lower", pipeline.lower)
            require_lowered(self.cuts[-1].mod, imported.name, shapes_of(imported.inputs))
            self._run_passes("schedule", pipeline.schedule)
            kernels = self.cuts[-1].mod
            self._add("kernels", "schedule of the kernels", schedule_kernels(kernels, machine)[0])
            self._run_passes("tile", pipeline.tile)
            kernels_final = self.cuts[-1].mod
            self._add("memory", "reuse of storage", plan_memory(kernels_final)[0])
            self._run_memory_passes(pipeline.memory, kernels_final)
            self._run_passes("target", pipeline.target)
        self.calls: list[KernelCall] = kernel_calls(kernels)

    def _add(self, stage: str, name: str, mod: tvm.IRModule) -> None:
        self.cuts.append(Cut(stage, name, "compiler", mod, True))

    def _run_passes(self, stage: str, steps: Sequence[Step]) -> None:
        for step in steps:
            if step.skipped:
                continue
            runner = PassRunner()
            mod = runner.run([step], self.cuts[-1].mod)
            entry = step.entry
            self.cuts.append(Cut(stage, entry.name, entry.source, mod, runner.records[-1].changed))

    def _run_memory_passes(self, steps: Sequence[Step], mod: tvm.IRModule) -> None:
        """These see the module in the middle of the planning, so each cut plans it anew."""
        running = [step for step in steps if not step.skipped]
        for count, step in enumerate(running, 1):
            runner = PassRunner()
            first = running[:count]
            planned, _ = plan_memory(mod, passes=functools.partial(runner.run, first))
            changed = runner.records[-1].changed
            entry = step.entry
            self.cuts.append(Cut("memory", entry.name, entry.source, planned, changed))

    def program(self) -> CompiledModel:
        """What the whole compilation makes."""
        return self.finish(self.cuts[-1].mod, self.cuts[-1].stage)

    def finish(self, mod: tvm.IRModule, stage: str) -> CompiledModel:
        """A program from a module that ``stage`` left.

        Raises
        ------
        TvmExtError
            The module cannot be finished in the plain way; a later cut may be.
        """
        machine = self._machine
        with compiling_for(machine) as target:
            if stage in ("import", "graph", "lower"):
                mod = self._lowered(mod, stage)
            # A GPU runs no kernel whose loops are bound to no threads.
            if not isinstance(machine, CpuDescription) and _comes_before(stage, "kernels"):
                mod, _ = schedule_kernels(mod, machine)
            if _comes_before(stage, "memory"):
                mod, _ = plan_memory(mod, reuse=False)
            program = build_program(mod, target, machine, mod, {})
        return CompiledModel(
            program=program.executable,
            inputs=self._imported.inputs,
            outputs=self._imported.outputs,
            target=target_record(machine),
            threads=machine.cores if isinstance(machine, CpuDescription) else 1,
            report=CompileReport(
                model=self._imported.name, opt_level=self._opt_level, device=program.device
            ),
        )

    def _lowered(self, mod: tvm.IRModule, stage: str) -> tvm.IRModule:
        plain = load_pipelines()["O0"]
        names = plain.lower if stage == "lower" else [*plain.graph, *plain.lower]
        steps = [Step(registry.get(name), {}) for name in names]
        mod = PassRunner().run(steps, mod)
        require_lowered(mod, self._imported.name, shapes_of(self._imported.inputs))
        return mod


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


def _comes_before(stage: str, other: str) -> bool:
    return STAGES.index(stage) < STAGES.index(other)
