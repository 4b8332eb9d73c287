"""``tvm-ext report-bug``: one file to attach to a report of a defect, without the weights."""

from pathlib import Path
from typing import Annotated

import typer

from tvm_ext.cli import options
from tvm_ext.cli.options import CompileOptions
from tvm_ext.cli.stderr_lines import progress_line

EXAMPLE = "Example: tvm-ext report-bug model.onnx -o report.zip --input-shape x=1,3,224,224"


def report_bug_command(
    model: options.Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.zip", help="The file to write.")
    ],
    target: options.Target = None,
    input_shape: options.InputShapes = None,
    opt_level: options.OptLevel = None,
    disable_pass: options.DisabledPasses = None,
    pass_config: options.PassConfig = None,
    pipeline: options.OwnPipeline = None,
    threads: options.Threads = None,
    json_output: options.Json = False,
) -> None:
    """Compile and run a model that fails, and write a bug report that holds no weights."""
    chosen = CompileOptions.parsed(
        target, input_shape, opt_level, disable_pass, pass_config, threads, pipeline=pipeline
    )
    machine = chosen.machine()
    from tvm_ext.bug_report import write_bug_report
    from tvm_ext.cli import output as out

    with progress_line():
        report = write_bug_report(model, output, machine, **chosen.keywords())
    if json_output:
        found = {"failure": report.failure, "fails_alike_without_weights": report.reproduces}
        out.print_json({"output": str(report.path), **found, "holds": report.holds})
        return
    failure = report.failure or "nothing: the model compiles, and runs on random inputs"
    lines = [f"Found: {failure}", f"Wrote {report.path}, which holds"]
    lines += [f"  {entry}" for entry in report.holds]
    if report.reproduces is not None:
        same = "fails in the same way" if report.reproduces else "does NOT fail in the same way"
        lines.append(
            f"Without its weights the model {same if report.failure else 'was tried too'}."
        )
    lines.append("Look at what it holds before you send it: names in the model are in it.")
    out.print_text("\n".join(lines))
