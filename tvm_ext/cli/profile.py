"""``tvm-ext profile``: where the time of a run goes, by kernel and ONNX node."""

from typing import Annotated

import typer

from tvm_ext.cli import options
from tvm_ext.cli.input_parsing import InputSource
from tvm_ext.cli.options import CompileOptions

EXAMPLE = "Example: tvm-ext profile model.tvmx --repeat 50 --top 10"


def profile_command(
    model: options.ModelOrCompiled,
    inputs: options.InputFile = None,
    fill: options.FillWith = None,
    seed: options.Seed = None,
    size: options.Sizes = None,
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, help="Runs to take the median of.")
    ] = 10,
    top: Annotated[
        int | None, typer.Option("--top", min=1, help="Print only the N slowest kernels.")
    ] = None,
    target: options.Target = None,
    input_shape: options.InputShapes = None,
    opt_level: options.OptLevel = None,
    disable_pass: options.DisabledPasses = None,
    pass_config: options.PassConfig = None,
    pipeline: options.OwnPipeline = None,
    threads: options.Threads = None,
    records: options.Records = None,
    require_records: options.RequireRecords = False,
    json_output: options.Json = False,
) -> None:
    """Measure every kernel of a run, with the ONNX nodes that it computes."""
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
    )
    compiled = chosen.open(model)
    measured = compiled.profile(source.arrays(compiled.inputs), repeat)
    from tvm_ext.cli import output as out

    if json_output:
        values = measured.to_dict()
        out.print_json({"model": str(model), **values, "kernels": values["kernels"][:top]})
        return
    out.print_rich(measured.to_table(top))
    hidden = len(measured.kernels) - (top or len(measured.kernels))
    if hidden > 0:
        out.print_text(f"{hidden} faster kernel(s) not shown.")
    out.print_text(
        f"The kernels add up to {measured.kernel_microseconds:.1f} us, measured with a hook around "
        f"each call; a whole run without it takes {measured.run_microseconds:.1f} us. The hook "
        "costs time at each call, so the sum can exceed the run."
    )
