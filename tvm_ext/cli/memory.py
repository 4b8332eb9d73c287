"""``tvm-ext memory``: where the values of a model lie in memory, printed and drawn."""

from pathlib import Path
from typing import Annotated

import typer

from tvm_ext.cli import options
from tvm_ext.cli.options import CompileOptions
from tvm_ext.cli.stderr_lines import progress_line

EXAMPLE = "Example: tvm-ext memory model.onnx -o plan.html --memory-limit 64MiB"


def memory_command(
    model: options.Model,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Draw the plan into this file, as .html or .svg: kernel calls across, addresses "
            "up, and a rectangle for each value.",
        ),
    ] = None,
    target: options.Target = None,
    input_shape: options.InputShapes = None,
    opt_level: options.OptLevel = None,
    disable_pass: options.DisabledPasses = None,
    pass_config: options.PassConfig = None,
    pipeline: options.OwnPipeline = None,
    threads: options.Threads = None,
    precision: options.Precision = None,
    fast_math: options.FastMath = False,
    memory_limit: options.MemoryLimit = None,
    records: options.Records = None,
    verbose: options.Verbose = False,
    json_output: options.Json = False,
) -> None:
    """Print where the values of a model lie in memory, and what needs most of it.

    The arena and its lower bound, the values that are alive at the peak, and what
    TVM's planner makes of the same program. No code is generated.
    """
    options.require_onnx_model(model)
    chosen = CompileOptions.parsed(
        target,
        input_shape,
        opt_level,
        disable_pass,
        pass_config,
        threads,
        records=records,
        pipeline=pipeline,
        precision=precision,
        fast_math=fast_math,
        memory_limit=memory_limit,
    )
    chosen.require_stated_precision()
    from tvm_ext.cli import output as out
    from tvm_ext.compiler.memory_of_model import model_memory
    from tvm_ext.configs.atomic_file import write_text
    from tvm_ext.report.memory_page import check_plan_file, render_plan
    from tvm_ext.report.memory_text import plan_parts

    if output is not None:
        check_plan_file(output)
        out.check_result_files([model], [output])
    with progress_line():
        found = model_memory(model, chosen.machine(), chosen.records, **chosen.keywords())
    if output is not None:
        write_text(output, render_plan(found, output.suffix))
    if json_output:
        drawing = str(output) if output is not None else None
        out.print_json({"output": drawing, **found.to_dict()})
        return
    out.print_rich(*plan_parts(found, verbose))
    out.print_saved(output)
