"""``tvm-ext passes``: which passes there are, and what they did to a model and why."""

from pathlib import Path
from typing import Annotated

import typer

from tvm_ext.cli import options
from tvm_ext.cli.options import CompileOptions, is_saved_model
from tvm_ext.errors import ModelError

app = options.command_group("List the passes, or explain what they did to a model.")


@app.command("list", epilog="Example: tvm-ext passes list O2")
def list_command(
    level: Annotated[
        str | None,
        typer.Argument(metavar="LEVEL", help="Show only this level.", show_default="all"),
    ] = None,
    opt_level: Annotated[
        str | None,
        typer.Option(
            "--opt-level", "-O", help="Show only this level, like LEVEL.", show_default="all"
        ),
    ] = None,
    pipeline: options.OwnPipeline = None,
    verbose: options.Verbose = False,
    json_output: options.Json = False,
) -> None:
    """List the optimisation levels with their passes in order, and every registered pass.

    With --pipeline, show what a compilation with that file runs instead of the
    levels.
    """
    from tvm_ext.cli import output as out
    from tvm_ext.cli.pass_tables import catalogue, catalogue_parts

    found = catalogue(level if level is not None else opt_level, pipeline)
    if json_output:
        out.print_json(found)
    else:
        out.print_rich(*catalogue_parts(found, verbose))


@app.command("explain", epilog="Example: tvm-ext passes explain model.onnx --refused-only")
def explain_command(
    subject: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL|PASS", help="ONNX model, compiled model (.tvmx), or the name of a pass."
        ),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option("--pass", metavar="NAME", help="Show only this pass. Repeatable."),
    ] = None,
    refused_only: Annotated[
        bool, typer.Option("--refused-only", help="Show only what was left alone, and why.")
    ] = False,
    target: options.Target = None,
    input_shape: options.InputShapes = None,
    opt_level: options.OptLevel = None,
    disable_pass: options.DisabledPasses = None,
    pass_config: options.PassConfig = None,
    pipeline: options.OwnPipeline = None,
    threads: options.Threads = None,
    precision: options.Precision = None,
    fast_math: options.FastMath = False,
    max_error: options.MaxError = None,
    samples: options.Samples = None,
    memory_limit: options.MemoryLimit = None,
    verbose: options.Verbose = False,
    json_output: options.Json = False,
) -> None:
    """Say what each pass did to a model, what it left alone and why, and how kernels are scheduled.

    With the name of a pass instead of a model, print the documentation of that
    pass.
    """
    chosen = CompileOptions.parsed(
        target,
        input_shape,
        opt_level,
        disable_pass,
        pass_config,
        threads,
        pipeline=pipeline,
        precision=precision,
        fast_math=fast_math,
        max_error=max_error,
        samples=samples,
        memory_limit=memory_limit,
    )
    if not subject.exists() and not is_saved_model(subject) and subject.suffix != ".onnx":
        _explain_pass(str(subject), json_output)
        return
    from tvm_ext.cli import output as out
    from tvm_ext.cli.pass_tables import explain, explanation_parts, find_pass

    names = frozenset(find_pass(name).name for name in only or ())
    report = chosen.open(subject).report
    explanation = explain(report, names, refused_only)
    if json_output:
        out.print_json(explanation)
    else:
        out.print_rich(*explanation_parts(explanation, verbose))


def _explain_pass(name: str, json_output: bool) -> None:
    """Prints the documentation of a registered pass; raises ModelError when it is not one."""
    from rich.text import Text

    from tvm_ext.cli import output as out
    from tvm_ext.cli.pass_tables import describe_pass, find_pass, unbroken
    from tvm_ext.errors import PassError

    try:
        entry = find_pass(name)
    except PassError as error:
        raise ModelError(
            f"{name} is neither a file nor a pass; expected an ONNX model, a .tvmx file or the "
            f"name of a pass ({str(error).partition('; ')[2]}): check the path"
        ) from error
    described = describe_pass(entry)
    if json_output:
        out.print_json(described)
        return
    defaults = ", ".join(f"{key}={value!r}" for key, value in described["options"].items())
    out.print_rich(
        Text(f"{entry.name} ({entry.source}, level {entry.level})", style="bold"),
        Text(f"Options: {defaults or 'none'}\n"),
        Text(unbroken(described["doc"]) or "It has no documentation."),
    )
