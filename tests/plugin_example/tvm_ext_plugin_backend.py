"""A backend, a template and a cost model in a package of its own, none of which tvm-ext knows."""

import json
from typing import Annotated, Literal

import tvm
import typer
from tvm import s_tir, tirx
from tvm.ir.utils import derived_object

import tvm_ext
from tvm_ext.compiler.backend import Programs
from tvm_ext.compiler.build import cpu_program
from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.backend import Backend
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.analysis.buffer_access import kernel_blocks, nodes
from tvm_ext.tir_schedules.backend import Scheduling
from tvm_ext.tir_schedules.cpu.blockwise import Blockwise
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.template import Decisions
from tvm_ext.tuning.backend import RANDOM, CostModelEntry, Tuning
from tvm_ext.tuning.cost_models.base import FormulaModel


class OneLoop:
    """Absolute values as one vectorised loop, of a length that a tuner may choose."""

    name = "one loop"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        sch = inlined_schedule(func)
        blocks = kernel_blocks(sch)
        calls = nodes(func.body, tvm.ir.Call)
        if len(blocks) != 1 or "tirx.fabs" not in [str(call.op.name) for call in calls]:
            raise NotApplicable("it is not one absolute value")
        lanes = machine.vector_lanes("float32")
        width = decisions.pick("width", (lanes, 2 * lanes), lanes)
        _, inner = sch.split(sch.fuse(*sch.get_loops(blocks[0])), [None, width])
        sch.vectorize(inner)
        return sch


def register_templates() -> None:
    """Ahead of the template of tvm-ext that takes such kernels otherwise."""
    tvm_ext.register_template("cpu", OneLoop, before="elementwise")


@derived_object
class ShortestText(FormulaModel):
    """The shorter a kernel is written, the better."""

    def score_module(self, mod: tvm.IRModule) -> float:
        """See ``FormulaModel``."""
        return 1e6 / len(mod.script())


def register_cost_models() -> None:
    """For CPUs."""
    tvm_ext.register_cost_model("cpu", "shortest", ShortestText)


class PlainCpu(CpuDescription):
    """This machine's CPU, whose kernels get the simplest of schedules."""

    kind: Literal["plain-cpu"]  # type: ignore[assignment]


def _this_machine() -> PlainCpu:
    return PlainCpu(**{**host_description().model_dump(), "kind": "plain-cpu", "name": "plain"})


commands = typer.Typer(help="Ask about the plain CPU.")


@commands.callback()
def _root() -> None:
    pass


@commands.command("cores")
def cores(json_output: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Print how many cores it has."""
    count = _this_machine().cores
    typer.echo(json.dumps({"cores": count}) if json_output else count)


def _of_tvm(target: tvm.target.Target) -> PlainCpu | None:
    """TVM targets with the key "plain" are this machine; others are left to other backends."""
    return _this_machine() if "plain" in target.keys else None


PLAIN = Backend(
    name="plain",
    machine_type=PlainCpu,
    default=_this_machine,
    tvm_targets={"llvm": _of_tvm},
    commands="tvm_ext_plugin_backend:commands",
    parts=(
        Scheduling(templates=(), fallback=Blockwise()),
        Tuning(cost_models={"shortest": CostModelEntry(ShortestText), "random": RANDOM}),
        Programs(build=cpu_program, built_for=lambda machine: {"mtriple": machine.mtriple}),
    ),
)
