"""The outcome of a check, as data and as text for a terminal."""

from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tvm_ext.check.tolerance import (
    MOST_FOR_SPREAD,
    SPREADS,
    WEIGHT_TOLERANCES,
    OutputDifference,
)
from tvm_ext.report.terminal_tables import FlexibleTable, ShortName, marked_lines, plain_text
from tvm_ext.report.units import ABSENT, plain

# What a search for the cause of a difference found, as data and as sentences.


@dataclass(frozen=True)
class NodeFinding:
    """The first node whose inputs agree with the reference and whose output does not.

    Attributes
    ----------
    opt_level : str
        The level at which it shows, with every intermediate value as an output.
    node, op_type : str
        The ONNX node of the prepared model.
    difference : OutputDifference
        Of the node's output.
    inputs : dict[str, float | None]
        Largest relative difference of each computed input; None where it was not compared.
    own_fault : bool or None
        Whether ONNX Runtime, fed with our inputs of the node, disagrees with our output; when it
        agrees, the node only amplifies what came in. None when that could not be tried.
    """

    opt_level: str
    node: str
    op_type: str
    difference: OutputDifference
    inputs: dict[str, float | None]
    own_fault: bool | None

    def sentence(self) -> str:
        """One line for people."""
        text = (
            f"first node that differs (at {self.opt_level}): {self.op_type} '{self.node}', "
            f"{describe(self.difference)}"
        )
        known = [value for value in self.inputs.values() if value is not None]
        if known:
            text += f"; its inputs differ by {max(known):.1e} at most"
        if self.own_fault is None:
            return text
        if self.own_fault:
            return text + "; fed with our inputs, ONNX Runtime still differs: the node is at fault"
        return text + "; fed with our inputs, ONNX Runtime agrees: the node amplifies rounding"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**vars(self), "difference": self.difference.to_dict()}


@dataclass(frozen=True)
class NodeValue:
    """What a node computed, beside ONNX Runtime's value.

    Attributes
    ----------
    node, op_type : str
        The ONNX node.
    difference : OutputDifference
        Under the name of the value.
    """

    node: str
    op_type: str
    difference: OutputDifference

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**vars(self), "difference": self.difference.to_dict()}


@dataclass(frozen=True)
class ValueComparison:
    """The intermediate values and outputs of a model beside ONNX Runtime's.

    Attributes
    ----------
    opt_level : str
        At which the model was compiled with all these values as outputs.
    values : tuple[NodeValue, ...]
        In the order of the graph.
    refusal : str
        Why there are none.
    """

    opt_level: str
    values: tuple[NodeValue, ...]
    refusal: str = ""

    @property
    def first(self) -> NodeValue | None:
        """The first value beyond its tolerance."""
        return next((value for value in self.values if not value.difference.ok), None)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        first = self.first
        return {
            "opt_level": self.opt_level,
            "values": [value.to_dict() for value in self.values],
            "first": first.to_dict() if first is not None else None,
            "refusal": self.refusal,
        }

    def renderables(self) -> list[RenderableType]:
        """A table of the values, and what it comes to."""
        if self.refusal:
            return [Text(plain(self.refusal))]
        table = FlexibleTable("", "~Node", "~Value", ">Differs by", ">Allowed", "")
        first = self.first
        for value in self.values:
            # Most names say the operator already.
            operator = "" if value.op_type in value.node else f" ({value.op_type})"
            named = ShortName(value.node + operator), ShortName(value.difference.name)
            verdict = _verdict(value.difference, "FIRST" if value is first else "FAIL")
            table.add_row(*named, *_distance(value.difference), verdict)
        return [table, Text(self._summary())]

    def _summary(self) -> str:
        first = self.first
        count = len(self.values)
        if first is None:
            return f"All {count} values agree, each as an output of its own at {self.opt_level}."
        wrong = sum(not value.difference.ok for value in self.values)
        return (
            f"{wrong} of {count} values are beyond their tolerance, each as an output of its own "
            f"at {self.opt_level}; the first is of {first.op_type} '{plain(first.node)}': "
            + plain(describe(first.difference))
        )


@dataclass(frozen=True)
class StepFinding:
    """The step of the compilation before which the outputs agree and after which they do not.

    Attributes
    ----------
    stage : str
        One of ``cuts.STAGES``.
    names : tuple[str, ...]
        The pass; several when the modules between them cannot be run.
    source : str
        Where the (last) pass comes from.
    before, after : OutputDifference
        The worst output before and after the step.
    kernel : str
        The kernel in which it happens, for a step that only rewrites kernels; else empty.
    kernel_nodes : tuple[str, ...]
        The nodes that this kernel computes.
    """

    stage: str
    names: tuple[str, ...]
    source: str
    before: OutputDifference
    after: OutputDifference
    kernel: str = ""
    kernel_nodes: tuple[str, ...] = ()

    def sentence(self) -> str:
        """One line for people."""
        numbers = (
            f"before it the outputs differ by {self.before.max_rel:.1e} at most, after it "
            + describe(self.after)
        )
        return f"first step that differs: {self._step()}; {numbers}"

    def _step(self) -> str:
        passes = " or ".join(f"'{name}'" for name in self.names)
        kernel = f"kernel {self.kernel}"
        if self.kernel_nodes:
            kernel += f" (nodes {', '.join(self.kernel_nodes)})"
        if "ScheduleKernels" in self.names:
            return f"the schedule of {kernel}" if self.kernel else self.names[-1]
        if self.source == "compiler":
            return passes.replace("'", "")
        step = f"pass {passes} ({self.source}, level {self.stage})"
        return f"{step}, in the schedule of {kernel}" if self.kernel else step

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            **vars(self),
            "names": list(self.names),
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "kernel_nodes": list(self.kernel_nodes),
        }


@dataclass
class Bisection:
    """All that was found out about a difference.

    Attributes
    ----------
    reference_spread : float
        Largest relative difference between ONNX Runtime with and without its optimisations: a
        difference of that size says nothing about us.
    preparation : OutputDifference or None
        The worst output where the simplification of the ONNX graph already changed the numbers.
    node : NodeFinding or None
    step : StepFinding or None
    remedies : list[str]
        Passes without each of which the outputs agree.
    notes : list[str]
        Why something could not be found.
    """

    reference_spread: float = 0.0
    preparation: OutputDifference | None = None
    node: NodeFinding | None = None
    step: StepFinding | None = None
    remedies: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def sentences(self) -> list[str]:
        """One line a finding."""
        lines = []
        if self.preparation is not None:
            lines.append(
                "the simplification of the ONNX graph changes the numbers, before any pass: "
                + describe(self.preparation)
            )
        lines += [found.sentence() for found in (self.step, self.node) if found is not None]
        lines += [
            f"without pass '{name}' the outputs agree (--disable-pass {name})"
            for name in self.remedies
        ]
        lines += self.notes
        lines.append(
            "ONNX Runtime itself differs with and without its optimisations by "
            f"{self.reference_spread:.1e}"
        )
        return lines

    def to_dict(self) -> dict[str, Any]:
        """JSON values; ``sentences`` says the same for people."""
        found = {name: getattr(self, name) for name in ("preparation", "node", "step")}
        plain = {name: one.to_dict() if one else None for name, one in found.items()}
        return {**vars(self), **plain, "sentences": self.sentences()}


def describe(difference: OutputDifference) -> str:
    """An output's difference as the end of a sentence."""
    text = f"'{difference.name}' {difference.reason}"
    if difference.max_abs != difference.max_abs:
        return text
    return (
        f"{text}, at {list(difference.worst_index)}: {difference.ours_value:.6g}, "
        f"reference {difference.reference_value:.6g}"
    )


@dataclass(frozen=True)
class CheckResult:
    """The comparison of a compiled model with ONNX Runtime.

    Attributes
    ----------
    model, target, opt_level : str
        The name of the model, the target and the optimisation level of the check.
    outputs : tuple[OutputDifference, ...]
        The difference of each output of the model, in their order.
    bisection : Bisection or None
        Where the difference comes from, if there is one and ``bisect`` was asked for.
    is_vacuous : bool
        Whether the program computes nothing, because each output is an input or a constant.
    values : ValueComparison or None
        The comparison of intermediate values, if ``all_values`` was asked for.
    reference_spread : float
        For a model that quantises values in the run: how far the floating-point outputs of ONNX
        Runtime move when its optimisations are off, and when inputs or stored numbers change a
        little, relative to the largest magnitude. It is 0 where it does not decide which difference
        is accepted.
    saturation : float
        How far the outputs of ONNX Runtime are from the reference, relative to the largest
        magnitude, because its sums of products of bytes saturate on this CPU; 0 where they do not.
    stored_weights : str
        The type that weights of matmuls were rounded to. It is empty where the type does not decide
        which difference is accepted.
    """

    model: str
    target: str
    opt_level: str
    outputs: tuple[OutputDifference, ...]
    bisection: Bisection | None = None
    is_vacuous: bool = False
    values: ValueComparison | None = None
    reference_spread: float = 0.0
    stored_weights: str = ""
    saturation: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every output is accepted."""
        return all(output.ok for output in self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "model": self.model,
            "target": self.target,
            "opt_level": self.opt_level,
            "ok": self.ok,
            "is_vacuous": self.is_vacuous,
            "outputs": [output.to_dict() for output in self.outputs],
            "bisection": self.bisection.to_dict() if self.bisection is not None else None,
            "values": self.values.to_dict() if self.values is not None else None,
            "reference_spread": self.reference_spread,
            "stored_weights": self.stored_weights,
            "saturation": self.saturation,
        }

    def renderable(self) -> RenderableType:
        """The outcome as one rich renderable."""
        verdict = "agrees with" if self.ok else "differs from"
        title = Text(plain(self.model), style="bold")
        title.append(f"  optimisation {self.opt_level}, target {plain(self.target)}: ", "dim")
        title.append(f"{verdict} ONNX Runtime", style="green" if self.ok else "red")
        parts: list[RenderableType] = [title, self._table()]
        if self.is_vacuous:
            parts.append(
                Text(
                    "No kernel ran: every output is an input, or a constant of the compilation. "
                    "The check says nothing of what the model computes from its inputs."
                )
            )
        if self.reference_spread:
            parts.append(
                Text(
                    "The model quantises in the run: a number between two steps may go to either. "
                    "ONNX Runtime differs from itself (without optimisations, or with inputs or "
                    "stored numbers moved by 1e-6) by up to "
                    f"{self.reference_spread:.1e}; {SPREADS:g} times that of an output is allowed "
                    f"there, {MOST_FOR_SPREAD:g} at most."
                )
            )
        if self.saturation:
            parts.append(
                Text(
                    "On this CPU ONNX Runtime's sums of products of unsigned by signed bytes "
                    f"saturate: its outputs are off by up to {self.saturation:.1e}. The reference "
                    "is what it computes of the same numbers as unsigned bytes, which is exact."
                )
            )
        if self.stored_weights:
            parts.append(
                Text(
                    f"Weights of matmuls are rounded to {self.stored_weights}: at least "
                    f"{WEIGHT_TOLERANCES[self.stored_weights]:.1%} of the largest magnitude is "
                    "allowed."
                )
            )
        findings = self.bisection.sentences() if self.bisection is not None else []
        lists = (
            marked_lines("What differs", [describe(one) for one in self.outputs if not one.ok]),
            marked_lines("Where it begins", findings, "-"),
        )
        parts += [one for one in lists if one is not None]
        if self.values is not None:
            parts += self.values.renderables()
        return Group(*parts)

    def __str__(self) -> str:
        """What ``to_text`` returns."""
        return self.to_text()

    def to_text(self, width: int = 100) -> str:
        """The outcome as plain text, at most ``width`` characters wide."""
        return plain_text(self.renderable(), width)

    def _table(self) -> Table:
        numbers = (">Differs by", ">Allowed", ">Ours@90", ">Reference@90", ">At@100")
        table = FlexibleTable("", "~Output", "Type", "", *numbers)
        for output in self.outputs:
            table.add_row(*_cells(output))
        return table


def _cells(output: OutputDifference) -> list[RenderableType]:
    cells: list[RenderableType] = [ShortName(output.name), plain(output.dtype), _verdict(output)]
    cells += _distance(output)
    if output.max_abs != output.max_abs or not output.worst_index:
        return cells
    values = (f"{value:.6g}" for value in (output.ours_value, output.reference_value))
    return [*cells, *values, ", ".join(map(str, output.worst_index))]


def _verdict(output: OutputDifference, failed: str = "FAIL") -> Text:
    return Text("ok", style="green") if output.ok else Text(failed, style="red")


def _distance(output: OutputDifference) -> list[str]:
    """How far off an output is, and how far it may be."""
    if output.max_abs != output.max_abs:
        return [ABSENT, ABSENT]
    identical = output.ok and output.max_abs == 0
    return [
        "identical" if identical else f"{output.max_rel:.1e}",
        f"{output.tolerance:.1e}" if output.tolerance else ABSENT,
    ]
