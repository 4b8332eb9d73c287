"""``tvm-ext explain``: what a kernel computes, how it walks through memory, and what limits it."""

from typing import Annotated

import typer

from tvm_ext.cli import options
from tvm_ext.cli.options import CompileOptions
from tvm_ext.cli.stderr_lines import progress_line

EXAMPLE = "Example: tvm-ext explain model.onnx Softmax_12 --target nvidia-h100"


def explain_command(
    model: options.Model,
    kernel: Annotated[
        str | None,
        typer.Argument(
            metavar="[KERNEL]",
            help="Name of a kernel, or a part of the name of a kernel or ONNX node. Left out: "
            "list the kernels by modelled time.",
            show_default=False,
        ),
    ] = None,
    target: options.Target = None,
    input_shape: options.InputShapes = None,
    opt_level: options.OptLevel = None,
    disable_pass: options.DisabledPasses = None,
    pass_config: options.PassConfig = None,
    pipeline: options.OwnPipeline = None,
    threads: options.Threads = None,
    records: options.Records = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", min=1, show_default="20; JSON: all", help="List the N slowest kernels."
        ),
    ] = None,
    verbose: options.Verbose = False,
    json_output: options.Json = False,
) -> None:
    """Explain a kernel: its ONNX nodes, its schedule, its memory accesses and its roofline.

    Of each load and store: the stride of every loop, the cache lines or sectors that it
    takes, and where its bytes come from. All times are modelled. No code is generated.
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
    )
    from tvm_ext.cli import output as out
    from tvm_ext.compiler.explain_model import explain_model

    with progress_line():
        found = explain_model(model, chosen.machine(), chosen.records, **chosen.keywords())
    kernels = list(found.kernels[:top]) if kernel is None else found.matching(kernel)
    if json_output:
        out.print_json(found.to_dict(kernels))
        return
    from tvm_ext.report.explain_text import KERNELS_SHOWN, kernel_list, kernel_parts

    if kernel is None:
        out.print_rich(kernel_list(found, top or KERNELS_SHOWN, verbose))
    else:
        out.print_rich(*kernel_parts(found, kernels, verbose))
