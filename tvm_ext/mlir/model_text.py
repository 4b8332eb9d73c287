"""The kernels of a model, or its graph, as one module of MLIR, at a stage of its lowering."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text
from torch_mlir import ir

from tvm_ext.configs.atomic_file import write_text
from tvm_ext.configs.errors import NotApplicable
from tvm_ext.configs.progress import tell
from tvm_ext.mlir import MlirError
from tvm_ext.mlir.from_relax import NOT_CONVERTED, convert_graph
from tvm_ext.mlir.kept_modules import kernel_at
from tvm_ext.mlir.lowering import GRAPH_STAGES, lower_to
from tvm_ext.mlir.model_kernels import ModelGraph, ModelKernels
from tvm_ext.report.terminal_tables import FlexibleTable, ShortName
from tvm_ext.report.units import format_count, format_percent, plain
from tvm_ext.tensor_spec import listed


@dataclass(frozen=True)
class KernelConversion:
    """One kernel, or operator of a graph, on its way to MLIR.

    Attributes
    ----------
    name : str
        The kernel, or the one that the operator is legalised to.
    origins : tuple[str, ...]
        The ONNX nodes that it computes.
    form : str
        "linalg on tensors" or "loops on memrefs"; empty where it was not converted.
    reason : str
        Why it was not converted, or why it is loops.
    """

    name: str
    origins: tuple[str, ...]
    form: str
    reason: str


@dataclass(frozen=True)
class ModelText:
    """A model's kernels, or its graph, as text of MLIR.

    Attributes
    ----------
    model, opt_level, stage : str
        The model's name, which passes ran, and the stage of lowering.
    unit : str
        "kernel", or "operator" where the text is of the graph.
    parts : tuple[KernelConversion, ...]
        What became of each kernel or operator.
    operations : dict of str to int
        Operations of linalg at the stage, by their names, and allocations.
    text : str
        One module: a function for each kernel that was converted, or the function of the graph.
    """

    model: str
    opt_level: str
    stage: str
    unit: str
    parts: tuple[KernelConversion, ...]
    operations: dict[str, int]
    text: str

    @property
    def converted(self) -> list[KernelConversion]:
        """The kernels or operators that the text has."""
        return [one for one in self.parts if one.form]

    def save(self, path: Path) -> None:
        """Writes the text to a file."""
        write_text(path, self.text)

    def to_dict(self) -> dict[str, Any]:
        """JSON values, without the text."""
        return {
            "model": self.model,
            "opt_level": self.opt_level,
            "stage": self.stage,
            "operations": self.operations,
            f"{self.unit}s": [vars(one) | {"origins": list(one.origins)} for one in self.parts],
        }

    def renderable(self) -> RenderableType:
        """What was converted and what was not, as one rich renderable."""
        title = Text(plain(self.model), style="bold")
        share = len(self.converted) / len(self.parts) if self.parts else 1.0
        facts = f"{len(self.converted)} of {format_count(len(self.parts), self.unit)}"
        title.append(f"  optimisation {self.opt_level}, stage {self.stage}", "not bold dim")
        forms = Counter(one.form for one in self.converted)
        table = FlexibleTable("", "Operations of linalg, and allocations", ">Count")
        for name, count in sorted(self.operations.items(), key=lambda pair: -pair[1]):
            table.add_row(name, f"{count:,}")
        parts: list[RenderableType] = [title, Text(f"In MLIR: {facts} ({format_percent(share)})")]
        parts += [Text(f"{form}: {format_count(n, self.unit)}") for form, n in forms.most_common()]
        parts += [table] if self.operations else []
        return Group(*parts, *self._reasons())

    def _reasons(self) -> list[RenderableType]:
        """What is not linalg, with the reason of each and the nodes that it comes from."""
        title, rows = "What is not linalg on tensors", [one for one in self.parts if one.reason]
        table = FlexibleTable(title, f"~{self.unit.capitalize()}", "~Nodes", "Form", "Reason")
        for one in rows:
            name, form = ShortName(one.name), one.form or "not converted"
            table.add_row(name, plain(listed(one.origins)), form, plain(one.reason))
        return [Text(), table] if rows else []


def model_text(found: ModelKernels, stage: str) -> ModelText:
    """Converts the kernels of a model and lowers them to a stage.

    A kernel that cannot be converted, or that a pass of MLIR fails on, is left out of the text and
    listed with the reason.
    """
    context = ir.Context()
    with context, ir.Location.unknown():
        whole = ir.Module.create()
    known: set[str] = set()
    done, operations = [], Counter[str]()
    for number, kernel in enumerate(found.kernels, start=1):
        tell(f"kernel {number} of {len(found.kernels)}")
        try:
            converted = kernel_at(kernel.func, kernel.name, stage, context)
        except (NotApplicable, MlirError) as error:
            reason = error.reason if isinstance(error, NotApplicable) else str(error)
            done.append(KernelConversion(kernel.name, kernel.origins, "", reason))
            continue
        operations.update(counted_operations(converted.module))
        form, reason = converted.form, converted.loops_because
        done.append(KernelConversion(kernel.name, kernel.origins, form, reason))
        _append(whole, converted.module, known)
    head = found.model, found.opt_level, stage, "kernel"
    return ModelText(*head, tuple(done), dict(operations), f"{whole}\n")


def graph_text(found: ModelGraph, stage: str) -> ModelText:
    """Converts the graph of a model and lowers it to a stage.

    An operator without a form is a call of a function without a body, and is listed with the
    reason.

    Raises
    ------
    MlirError
        An input or output of the model has no type in MLIR, or a pass of MLIR fails.
    """
    try:
        graph = convert_graph(found.mod)
    except NotApplicable as refused:
        raise MlirError(
            f"the graph of {found.model} has no form in MLIR: {refused.reason}; expected tensors "
            "of numbers: write its kernels with --kernels"
        ) from refused
    lower_to(graph.module, stage, GRAPH_STAGES)
    parts = [
        KernelConversion(
            one.name, one.origins, "" if one.form == NOT_CONVERTED else one.form, one.reason
        )
        for one in graph.operators
    ]
    head = found.model, found.opt_level, stage, "operator"
    operations = counted_operations(graph.module)
    return ModelText(*head, tuple(parts), operations, f"{graph.module}\n")


_ALLOCATIONS = ("memref.alloc", "memref.alloca", "tensor.empty")


def counted_operations(module: ir.Module) -> dict[str, int]:
    """How many operations of linalg there are, by their names, and how many allocations."""
    found: Counter[str] = Counter()

    def count(op: ir.Operation) -> ir.WalkResult:
        name = str(op.name)
        is_counted = name.startswith("linalg.") or name in _ALLOCATIONS
        if is_counted and name not in ("linalg.yield", "linalg.index"):
            found[name] += 1
        return ir.WalkResult.ADVANCE

    module.operation.walk(count)
    return dict(found)


def _append(whole: ir.Module, part: ir.Module, known: set[str]) -> None:
    """Moves the functions of a module to the end of another one of the same context.

    Declarations of functions of the C library come once.
    """
    for op in list(part.body.operations):
        name = str(op.attributes["sym_name"])
        if name in known:
            continue
        known.add(name)
        op.operation.detach_from_parent()
        whole.body.append(op)
