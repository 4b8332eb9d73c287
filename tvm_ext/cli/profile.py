"""``tvm-ext profile``: where the time of a run goes, by kernel and ONNX node."""

from pathlib import Path
from typing import Annotated

import typer

from tvm_ext.cli import options
from tvm_ext.cli.input_parsing import InputSource
from tvm_ext.cli.options import CompileOptions
from tvm_ext.cli.stderr_lines import progress_line

EXAMPLE = "Example: tvm-ext profile model.tvmx --report profile.html --trace trace.json"


def profile_command(
    model: options.ModelOrCompiled,
    inputs: options.InputFile = None,
    fill: options.FillWith = None,
    seed: options.Seed = None,
    size: options.Sizes = None,
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, help="Number of runs. The report shows their median.")
    ] = 10,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", min=1, show_default="10; JSON: all", help="Print the N slowest kernels."
        ),
    ] = None,
    measure_peaks: Annotated[
        bool,
        typer.Option(
            "--measure-peaks",
            help="On a CPU: compare rates with peaks that are measured now, which takes some "
            "seconds, instead of with those of the target's description.",
        ),
    ] = False,
    report: options.Report = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE.json",
            help="Save the calls of one run as a timeline for Perfetto or chrome://tracing.",
        ),
    ] = None,
    target: options.Target = None,
    input_shape: options.InputShapes = None,
    specialize: options.Specialize = None,
    opt_level: options.OptLevel = None,
    disable_pass: options.DisabledPasses = None,
    pass_config: options.PassConfig = None,
    pipeline: options.OwnPipeline = None,
    threads: options.Threads = None,
    precision: options.Precision = None,
    fast_math: options.FastMath = False,
    codegen: options.CodeGenerator = None,
    max_error: options.MaxError = None,
    samples: options.Samples = None,
    memory_limit: options.MemoryLimit = None,
    records: options.Records = None,
    require_records: options.RequireRecords = False,
    verbose: options.Verbose = False,
    json_output: options.Json = False,
) -> None:
    """Measure every kernel of a run, and name the ONNX nodes that it computes."""
    source = InputSource.parsed(inputs, fill, seed, size)
    chosen = CompileOptions.parsed(
        target,
        input_shape,
        opt_level,
        disable_pass,
        pass_config,
        threads,
        records=records,
        require_records=require_records,
        pipeline=pipeline,
        specialize=specialize,
        precision=precision,
        fast_math=fast_math,
        codegen=codegen,
        max_error=max_error,
        samples=samples,
        memory_limit=memory_limit,
    )
    from tvm_ext.cli import output as out

    out.check_report_file(report)
    sources = [path for path in (model, inputs) if path is not None]
    out.check_result_files(sources, [path for path in (report, trace) if path is not None])
    compiled = chosen.open(model)
    arrays = source.arrays(compiled.inputs)
    with progress_line(is_measuring=True):
        measured = compiled.profile(arrays, repeat, measure_peaks=measure_peaks)
    if report is not None:
        measured.save(report)
    if trace is not None:
        measured.save_trace(trace)
    if json_output:
        values = measured.to_dict()
        out.print_json({**values, "model": str(model), "kernels": values["kernels"][:top]})
        return
    from tvm_ext.report.profile_text import KERNELS_SHOWN, renderable

    out.print_rich(renderable(measured, top or KERNELS_SHOWN, verbose=verbose))
    out.print_saved(report, trace)
