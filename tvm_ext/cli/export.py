"""``tvm-ext export``: a model as a folder that C and C++ programs build on."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from tvm_ext.cli import options
from tvm_ext.cli.options import CompileOptions

EXAMPLE = "Example: tvm-ext export model.tvmx -o deployed"


def export_command(
    model: options.ModelOrCompiled,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="The folder to write. It must be new or empty."
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            show_default="the model's file name",
            help="Name of the library, of its header and of the constants in the header.",
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
    codegen: options.CodeGenerator = None,
    max_error: options.MaxError = None,
    samples: options.Samples = None,
    memory_limit: options.MemoryLimit = None,
    records: options.Records = None,
    require_records: options.RequireRecords = False,
    json_output: options.Json = False,
) -> None:
    """Write a library, a header and an example that run a model in C and C++ without Python."""
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
        precision=precision,
        fast_math=fast_math,
        codegen=codegen,
        max_error=max_error,
        samples=samples,
        memory_limit=memory_limit,
    )
    from tvm_ext.configs.atomic_file import check_new_folder

    check_new_folder(output)
    files = chosen.open(model).export_library(output, name=name, threads=threads)
    from tvm_ext.cli import output as out

    if json_output:
        out.print_json({"model": str(model), "files": [str(file) for file in files]})
        return
    out.print_saved(*files)
    folder, build = shlex.quote(str(output)), shlex.quote(str(output / "build"))
    # TVM's libraries are those of this Python, which need not be the first on the search path.
    python = f"-DPython_EXECUTABLE={shlex.quote(sys.executable)}"
    configure = f"cmake -S {folder} -B {build} \\\n    {python}"
    steps = (configure, f"cmake --build {build}", f"{build}/example {folder}")
    # The shell joins the lines where they are copied.
    out.print_text("Try it:\n  " + " && \\\n  ".join(steps))
