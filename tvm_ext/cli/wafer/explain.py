"""``tvm-ext wafer explain``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvm_ext.cli import options
from tvm_ext.cli.options import CompileOptions, WaferTarget, is_saved_model
from tvm_ext.cli.stderr_lines import progress_line
from tvm_ext.errors import InputError

if TYPE_CHECKING:
    from tvm_ext.wafer.kernel_cost import KernelCost
    from tvm_ext.wafer.model_cost import ModelCost

EXAMPLE = "Example: tvm-ext wafer explain model.onnx --target wse2 --html wafer.html"

_REFUSED = 1


def explain_command(
    model: options.Model,
    target: WaferTarget = "wse2",
    records: options.Records = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            metavar="PATTERN",
            help="Show only kernels whose name or ONNX node matches a pattern with * and ?, "
            "and show their steps.",
        ),
    ] = None,
    input_shape: options.InputShapes = None,
    opt_level: options.OptLevel = None,
    disable_pass: options.DisabledPasses = None,
    pass_config: options.PassConfig = None,
    pipeline: options.OwnPipeline = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE.html",
            help="Save the report to this file, with maps of the grid.",
        ),
    ] = None,
    verbose: options.Verbose = False,
    json_output: options.Json = False,
) -> None:
    """Say what each kernel of an ONNX model costs on a mesh, and where the time goes.

    All times are modelled. Exit code 1 means that a kernel breaks a hard limit of
    the mesh.
    """
    if is_saved_model(model):
        raise InputError(
            f"{model} is a compiled model; expected an ONNX model: its kernels are scheduled for "
            "another machine"
        )
    chosen = CompileOptions.parsed(
        target, input_shape, opt_level, disable_pass, pass_config, pipeline=pipeline
    )
    from tvm_ext.cli import output as out
    from tvm_ext.wafer.model_cost import model_cost

    if html is not None:
        out.check_result_files([model], [html])
    with progress_line():
        cost = model_cost(model, target, records or (), **chosen.keywords())
    shown = _matching(cost, kernel)
    if json_output:
        from tvm_ext.wafer.report_figures import wafer_json

        out.print_json(wafer_json(cost, shown, with_programs=kernel is not None))
    else:
        from tvm_ext.wafer.report_text import program_parts, wafer_summary

        if kernel is None:
            out.print_rich(wafer_summary(cost, shown, verbose))
        else:
            out.print_rich(*(part for one in shown for part in program_parts(cost, one, verbose)))
    if html is not None:
        from tvm_ext.configs.atomic_file import write_text
        from tvm_ext.wafer.report_page import render_wafer_html

        write_text(html, render_wafer_html(cost))
        if not json_output:
            out.print_text(f"Saved {html}")
    everything = kernel is None
    if any(one.refusal for one in shown) or (everything and cost.chosen.refusal):
        raise typer.Exit(_REFUSED)


def _matching(cost: "ModelCost", pattern: str | None) -> "list[KernelCost]":
    """The kernels that a pattern names; all without one."""
    if pattern is None:
        return list(cost.kernels)
    from fnmatch import fnmatchcase

    found = [
        one
        for one in cost.kernels
        if any(fnmatchcase(name, pattern) for name in (one.name, *one.node_names))
    ]
    if not found:
        raise InputError(
            f"no kernel or node matches '{pattern}'; expected a name or a pattern with * and ?: "
            "run the command without --kernel to see the names"
        )
    return found
