"""Which ONNX operators have gradients, tried on the cases of onnx.backend.test.

Run as a program it writes docs/reference/gradients.md: ``make gradients``.
"""

import sys
import textwrap
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
from cases import OnnxBackendCase, all_cases
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tvm_ext.configs.atomic_file import write_text
from tvm_ext.errors import InputError, ModelError, UnsupportedOperatorError
from tvm_ext.onnx_frontend.trainable import import_trainable
from tvm_ext.tensor_spec import TensorSpec
from tvm_ext.training import SGD
from tvm_ext.training.step_program import StepOptions, step_programs

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "gradients.md"

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
# An operator has a gradient where one of so many trials has: by all operands, and by the first,
# as sizes and scales are operands, too.
_MOST_TRIALS, _MOST_OPERANDS = 6, 99
_OPEN = "a run decides the sizes of its result"

_HEAD = """# Gradients of ONNX operators

Written by `make gradients`, which differentiates cases of the onnx package's own tests; do not
edit.

An operator without a gradient that lies between a trained weight and the loss is refused by
`compile_training`, with the names of its nodes. Ahead of all trained weights, any operator may
stand. Not listed: operators whose results are no floating-point numbers, which need no gradient,
and sequences. If, Loop and Scan have gradients where what they hold has. An operator with a
gradient may have forms without one.
"""


class _SumOfOutputs:
    """A loss of all outputs that are floating-point numbers."""

    def targets(self, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
        return []

    def value(
        self, bb: relax.BlockBuilder, outputs: Sequence[relax.Expr], targets: Sequence[relax.Expr]
    ) -> relax.Expr:
        total: relax.Expr = relax.const(0.0, "float32")
        for one in outputs:
            if "float" in str(getattr(one.ty, "dtype", "")):
                part = bb.emit(relax.op.astype(bb.emit(relax.op.sum(one)), "float32"))
                total = bb.emit(relax.op.add(total, part))
        return total


def trainable_case(case: OnnxBackendCase, operands: int) -> onnx.ModelProto | None:
    """The model of a case with weights in place of its first operands; None without gradients.

    Each weight is multiplied by 1 ahead of the operator, so that it counts as one.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graph = model.graph
    results = [value.type.tensor_type.elem_type for value in graph.output]
    if len(graph.node) != 1 or case.source.model is None or not set(results).intersection(_FLOATS):
        return None
    given, _ = next(case.data_sets())
    if not all(isinstance(array, np.ndarray | np.generic) for array in given):
        return None
    scaled: list[onnx.NodeProto] = []
    for place, (value, array) in enumerate(zip(list(graph.input), given, strict=False)):
        kind = value.type.tensor_type.elem_type
        graph.input.remove(value)
        stored = numpy_helper.from_array(np.asarray(array), value.name)
        if place < operands and kind in _FLOATS and np.size(array) > 1:
            stored.name, one = f"{value.name}::weight", f"{value.name}::one"
            number = np.ones([], helper.tensor_dtype_to_np_dtype(kind))
            graph.initializer.append(numpy_helper.from_array(number, one))
            scaled.append(helper.make_node("Mul", [stored.name, one], [value.name]))
        graph.initializer.append(stored)
    nodes = [*scaled, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    if not any(not one.domain for one in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", 20))
    return model if scaled else None


def refusal_of(model: onnx.ModelProto) -> str:
    """Why a model cannot be differentiated; nothing where it can."""
    try:
        trainable = import_trainable(model, None, None)
        step_programs(trainable, _SumOfOutputs(), SGD(lr=1.0), StepOptions())
    except UnsupportedOperatorError as error:
        return ", ".join(error.operators)
    except InputError:
        return _OPEN
    return ""


def refusals() -> dict[str, str]:
    """By operator, why it has no gradient; nothing for those that have one."""
    found: dict[str, list[str]] = {}
    for case in all_cases():
        reasons = found.get(case.operator, [])
        if "_expanded" in case.name or "" in reasons or len(reasons) >= _MOST_TRIALS:
            continue
        for operands in (_MOST_OPERANDS, 1):
            model = trainable_case(case, operands)
            if model is None:
                break
            # A case may be no valid model with its operands as initializers.
            with suppress(ModelError):
                found.setdefault(case.operator, []).append(refusal_of(model))
    tried = sorted((name, reasons) for name, reasons in found.items() if reasons)
    return {name: "" if "" in reasons else reasons[0] for name, reasons in tried}


def gradients_page() -> str:
    """The page, as Markdown."""
    found = refusals()
    have = [name for name, reason in found.items() if not reason]
    lines = [_HEAD, f"{len(have)} of {len(found)} have a gradient.\n", "## Without a gradient\n"]
    lines += ["| operator | what has none |", "| --- | --- |"]
    lines += [f"| {name} | {reason} |" for name, reason in found.items() if reason]
    lines += ["", "## With a gradient\n", textwrap.fill(", ".join(have) + ".", 100), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    write_text(Path(sys.argv[1]), gradients_page())
