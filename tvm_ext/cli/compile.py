"""``tvm-ext compile``: an ONNX model into one file, with a report of what was done."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvm_ext.cli import options
from tvm_ext.cli.options import CompileOptions, is_saved_model
from tvm_ext.errors import InputError

if TYPE_CHECKING:
    from tvm_ext.compiled_model import CompiledModel

EXAMPLE = "Example: tvm-ext compile model.onnx -o model.tvmx --input-shape x=1,3,224,224"


def compile_command(
    model: options.Model,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE.tvmx", help="Save the compiled model to this file."
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
    devices: options.Devices = None,
    shard: options.Shard = None,
    records: options.Records = None,
    require_records: options.RequireRecords = False,
    tf32: options.Tf32 = False,
    dump_ir: Annotated[
        Path | None,
        typer.Option(
            "--dump-ir", metavar="FOLDER", help="Write the module after each pass to this folder."
        ),
    ] = None,
    report: options.Report = None,
    json_output: options.Json = False,
    verbose: options.Verbose = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print the report.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Do not compile. List the operators and say whether each is supported, "
            "supported by expansion or unsupported.",
        ),
    ] = False,
) -> None:
    """Compile an ONNX model, save it, and report what the compiler did."""
    chosen = CompileOptions.parsed(
        target,
        input_shape,
        opt_level,
        disable_pass,
        pass_config,
        threads,
        dump_ir,
        records,
        require_records,
        tf32,
        pipeline,
        specialize,
        precision=precision,
        fast_math=fast_math,
        codegen=codegen,
        max_error=max_error,
        samples=samples,
        memory_limit=memory_limit,
        devices=devices,
        shard=shard,
    )
    if dry_run:
        from tvm_ext.cli.tables import print_operators

        print_operators(model, chosen.input_shapes, json_output)
        return
    compiled = compile_files(model, chosen, output, report)
    from tvm_ext.cli import output as out

    if json_output:
        saved = {"output": output, "report_file": report}
        paths = {key: str(path) if path is not None else None for key, path in saved.items()}
        out.print_json({**paths, "report": compiled.report.to_dict()})
    elif not quiet:
        from tvm_ext.report.text import renderable

        out.print_rich(renderable(compiled.report, verbose))
        out.print_saved(output, report)


def compile_files(
    model: Path, chosen: CompileOptions, output: Path | None = None, report: Path | None = None
) -> "CompiledModel":
    """Compiles ``model`` and saves program and report where asked.

    Raises
    ------
    InputError
        The model is a compiled one, or the report's ending is neither .html nor .json.
    TvmExtError
        As ``tvm_ext.compile`` and ``CompiledModel.save``. Paths are checked before compiling.
    """
    from tvm_ext.cli import output as out

    out.check_report_file(report)
    if is_saved_model(model):
        raise InputError(
            f"{model} is a compiled model; expected an ONNX model: use 'tvm-ext run', or compile "
            "the ONNX model that it was made of"
        )
    out.check_result_files([model], [path for path in (output, report) if path is not None])
    compiled = chosen.compile(model)
    if output is not None:
        compiled.save(output)
    if report is not None:
        compiled.report.save(report)
    return compiled
