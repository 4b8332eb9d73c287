"""``tvm-ext compile --dry-run``: the operators of a model, and what becomes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from tvm_ext.cli.compile_options import is_saved_model
from tvm_ext.cli.output import print_json, print_rich
from tvm_ext.errors import InputError

# Of an operator that stands in a hundred places; JSON has all names.
_NAMES_SHOWN = 4


def print_operators(
    model: Path, input_shapes: Mapping[str, Sequence[int | str]], json_output: bool
) -> None:
    """Prints the table; exit code 1 where an operator is unsupported.

    Raises
    ------
    InputError, ModelError
        The model or the shapes are not valid, or a node has a form that cannot be converted.
    """
    if is_saved_model(model):
        raise InputError(f"{model} is a compiled model; expected an ONNX model")
    from rich.table import Table

    from tvm_ext.onnx_frontend.operator_table import UNSUPPORTED, operator_uses

    uses = operator_uses(model, input_shapes)
    if json_output:
        print_json({"operators": [asdict(use) for use in uses]})
    else:
        table = Table("operator", "support", "count", "nodes", title=model.name)
        table.columns[2].justify = "right"
        for use in uses:
            table.add_row(use.operator, use.support, str(len(use.nodes)), _shown(use.nodes))
        print_rich(table)
    if any(use.support == UNSUPPORTED for use in uses):
        raise typer.Exit(1)


def _shown(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
