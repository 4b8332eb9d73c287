"""``tvm-ext mlir``: a model's graph or kernels in the dialects of MLIR."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tvm_ext.cli import options
from tvm_ext.cli.options import CompileOptions
from tvm_ext.cli.stderr_lines import progress_line

EXAMPLE = "Example: tvm-ext mlir model.onnx --stage linalg -o model.mlir"


class Stage(str, Enum):
    """How far the module is lowered."""

    linalg = "linalg"
    bufferized = "bufferized"
    llvm = "llvm"


def mlir_command(
    model: options.Model,
    stage: Annotated[
        Stage,
        typer.Option(
            "--stage",
            help="linalg: operations on tensors. bufferized: fused, and on memory. llvm: the llvm "
            "dialect, from which code is generated.",
        ),
    ] = Stage.linalg,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.mlir",
            help="Write the module to this file, for mlir-opt and its likes.",
        ),
    ] = None,
    kernels: Annotated[
        bool,
        typer.Option(
            "--kernels",
            help="Write a function for each fused kernel, and not one for the graph.",
        ),
    ] = False,
    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            metavar="NAME",
            help="Only the kernels with this in their name or in that of an ONNX node; their text "
            "is printed.",
        ),
    ] = None,
    target: options.Target = None,
    input_shape: options.InputShapes = None,
    opt_level: options.OptLevel = None,
    disable_pass: options.DisabledPasses = None,
    pass_config: options.PassConfig = None,
    pipeline: options.OwnPipeline = None,
    json_output: options.Json = False,
) -> None:
    """Write a model's graph in MLIR, or its kernels as they are before they are scheduled.

    Needs torch-mlir: pip install 'tvm-ext[mlir]'.
    """
    from tvm_ext.cli import output as out
    from tvm_ext.mlir import require_mlir

    options.require_onnx_model(model)
    require_mlir()
    chosen = CompileOptions.parsed(
        target, input_shape, opt_level, disable_pass, pass_config, pipeline=pipeline
    )
    if output is not None:
        out.check_result_files([model], [output])
    from tvm_ext.mlir.model_kernels import KernelsRequest, model_graph, model_kernels
    from tvm_ext.mlir.model_text import graph_text, model_text

    with progress_line():
        request = KernelsRequest(chosen.machine(), **chosen.keywords())
        if kernels or kernel is not None:
            found = model_kernels(model, request, with_schedules=False)
            text = model_text(found if kernel is None else found.matching(kernel), stage.value)
        else:
            text = graph_text(model_graph(model, request), stage.value)
    if output is not None:
        text.save(output)
    if json_output:
        out.print_json(text.to_dict())
    elif kernel is not None and output is None:
        out.print_text(text.text)
    else:
        out.print_rich(text.renderable())
