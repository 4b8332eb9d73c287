"""The kernels of a model as one module of MLIR, at a stage of its lowering."""

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
from tvm_ext.mlir.from_tensorir import convert_kernel
from tvm_ext.mlir.lowering import lower_to
from tvm_ext.mlir.model_kernels import ModelKernels
from tvm_ext.report.terminal_tables import FlexibleTable, ShortName
from tvm_ext.report.units import format_count, format_percent, plain


@dataclass(frozen=True)
class KernelConversion:
    """One kernel on its way to MLIR.

    Attributes
    ----------
    name : str
        The kernel.
    origins : tuple[str, ...]
        The ONNX nodes that it computes.
    form : str
        "linalg on tensors" or "loops on memrefs"; empty where it was not converted.
    reason : str
        Why it was not converted, or why it is loops.
    operations : dict of str to int
        Operations of linalg in it, by their names, and allocations, at the stage.
    """

    name: str
    origins: tuple[str, ...]
    form: str
    reason: str
    operations: dict[str, int]


@dataclass(frozen=True)
class ModelText:
    """A model's kernels as text of MLIR.

    Attributes
    ----------
    model, opt_level, stage : str
        The model's name, which passes ran, and the stage of lowering.
    kernels : tuple[KernelConversion, ...]
        What became of each kernel.
    text : str
        One module with a function for each kernel that was converted.
    """

    model: str
    opt_level: str
    stage: str
    kernels: tuple[KernelConversion, ...]
    text: str

    @property
    def converted(self) -> list[KernelConversion]:
        """The kernels that the text has."""
        return [one for one in self.kernels if one.form]

    def save(self, path: Path) -> None:
        """Writes the text to a file."""
        write_text(path, self.text)

    def to_dict(self) -> dict[str, Any]:
        """JSON values, without the text."""
        return {
            "model": self.model,
            "opt_level": self.opt_level,
            "stage": self.stage,
            "kernels": [vars(one) | {"origins": list(one.origins)} for one in self.kernels],
        }

    def renderable(self) -> RenderableType:
        """What was converted and what was not, as one rich renderable."""
        title = Text(plain(self.model), style="bold")
        share = len(self.converted) / len(self.kernels) if self.kernels else 1.0
        facts = f"{len(self.converted)} of {format_count(len(self.kernels), 'kernel')}"
        title.append(f"  optimisation {self.opt_level}, stage {self.stage}", "not bold dim")
        forms = Counter(one.form for one in self.converted)
        table = FlexibleTable("", "Operations of linalg, and allocations", ">Count")
        for name, count in sorted(self._operations().items(), key=lambda pair: -pair[1]):
            table.add_row(name, f"{count:,}")
        parts: list[RenderableType] = [title, Text(f"In MLIR: {facts} ({format_percent(share)})")]
        parts += [Text(f"{form}: {format_count(n, 'kernel')}") for form, n in forms.most_common()]
        parts += [table] if self._operations() else []
        return Group(*parts, *self._reasons())

    def _operations(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for one in self.kernels:
            total.update(one.operations)
        return total

    def _reasons(self) -> list[RenderableType]:
        """The kernels that are not linalg, with the reason of each."""
        table = FlexibleTable("What is not linalg on tensors", "~Kernel", "Form", "Reason")
        rows = [one for one in self.kernels if one.reason]
        for one in rows:
            table.add_row(ShortName(one.name), one.form or "not converted", plain(one.reason))
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
    done = []
    for number, kernel in enumerate(found.kernels, start=1):
        tell(f"kernel {number} of {len(found.kernels)}")
        try:
            converted = convert_kernel(kernel.func, kernel.name, context)
            lower_to(converted.module, stage)
        except (NotApplicable, MlirError) as error:
            reason = error.reason if isinstance(error, NotApplicable) else str(error)
            done.append(KernelConversion(kernel.name, kernel.origins, "", reason, {}))
            continue
        counts = counted_operations(converted.module)
        form, reason = converted.form, converted.loops_because
        done.append(KernelConversion(kernel.name, kernel.origins, form, reason, counts))
        _append(whole, converted.module, known)
    return ModelText(found.model, found.opt_level, stage, tuple(done), f"{whole}\n")


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
