"""``tvm-ext check``: are the numbers right, compared with ONNX Runtime?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvm_ext.cli import options
from tvm_ext.cli.input_parsing import InputSource
from tvm_ext.cli.options import CompileOptions, is_saved_model
from tvm_ext.cli.stderr_lines import progress_line
from tvm_ext.errors import InputError

if TYPE_CHECKING:
    from tvm_ext.check.result import CheckResult

EXAMPLE = "Example: tvm-ext check model.onnx --bisect"

DIFFERS = 1


def check_command(
    model: options.ModelOrCompiled,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against", metavar="MODEL.onnx", help="The ONNX model of a compiled model (.tvmx)."
        ),
    ] = None,
    inputs: options.InputFile = None,
    seed: options.Seed = None,
    size: options.Sizes = None,
    rtol: Annotated[
        float | None,
        typer.Option(
            "--rtol",
            min=0.0,
            show_default="by dtype",
            help="Largest difference, relative to the output's largest magnitude.",
        ),
    ] = None,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="If it differs, name the first node that does.")
    ] = False,
    target: options.Target = None,
    input_shape: options.InputShapes = None,
    opt_level: options.OptLevel = None,
    disable_pass: options.DisabledPasses = None,
    pass_config: options.PassConfig = None,
    pipeline: options.OwnPipeline = None,
    threads: options.Threads = None,
    json_output: options.Json = False,
) -> None:
    """Compare a model's outputs with ONNX Runtime's; exit code 1 when they differ."""
    source = InputSource.parsed(inputs, seed=seed, size=size)
    chosen = CompileOptions.parsed(
        target, input_shape, opt_level, disable_pass, pass_config, threads, pipeline=pipeline
    )
    result = check_file(model, chosen, source, against=against, rtol=rtol, bisect=bisect)
    from tvm_ext.cli import output as out

    if json_output:
        out.print_json(result.to_dict())
    else:
        out.print_rich(result.renderable())
    if not result.ok:
        raise typer.Exit(DIFFERS)


def check_file(
    model: Path,
    chosen: CompileOptions,
    source: InputSource,
    *,
    against: Path | None = None,
    rtol: float | None = None,
    bisect: bool = False,
) -> "CheckResult":
    """Checks an ONNX model, compiled with ``chosen``, or a saved model against its ONNX model.

    Raises
    ------
    InputError
        ``against`` is missing for a saved model or given for an ONNX model, or options were given
        that need a compilation.
    TvmExtError
        As ``tvm_ext.compile`` and ``check_model``.
    """
    if is_saved_model(model):
        return _check_saved(model, chosen, source, against, rtol, bisect)
    if against is not None:
        raise InputError(
            f"--against comes with {model}, which is not a compiled model; expected it with a "
            ".tvmx file: leave it out"
        )
    from tvm_ext.check.check import check_model

    with progress_line():
        return check_model(
            model,
            chosen.machine(),
            inputs=source.file,
            seed=source.seed,
            sizes=source.sizes,
            rtol=rtol,
            bisect=bisect,
            **chosen.keywords(),
        )


def _check_saved(
    model: Path,
    chosen: CompileOptions,
    source: InputSource,
    against: Path | None,
    rtol: float | None,
    bisect: bool,
) -> "CheckResult":
    if against is None:
        raise InputError(
            f"{model} is a compiled model; expected the ONNX model that it was made of as well: "
            "give it with --against"
        )
    if bisect:
        raise InputError(
            f"--bisect compiles the model again and {model} is compiled already; expected an "
            f"ONNX model: check {against} with --bisect"
        )
    from tvm_ext.check.check import check_compiled

    compiled = chosen.open(model)
    with progress_line():
        return check_compiled(compiled, against, source.arrays(compiled.inputs), rtol)
