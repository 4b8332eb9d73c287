"""Types of the arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from tvm_ext.cli.input_arrays import Fill

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX model.")]
ModelOrCompiled = Annotated[
    Path, typer.Argument(metavar="MODEL", help="ONNX model, or a compiled model (.tvmx).")
]

_COMPILE = "Compilation"

Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        show_default="cpu",
        rich_help_panel=_COMPILE,
        help="This machine ('cpu'), a preset ('tvm-ext targets list'), or a .toml file.",
    ),
]
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="NAME=SIZES",
        rich_help_panel=_COMPILE,
        help="An input's sizes: x=1,3,224,224 freezes them, x=N,3,224:640,224:640 leaves some to "
        "each run, within ranges where given; repeatable.",
    ),
]
OptLevel = Annotated[
    str | None,
    typer.Option(
        "--opt-level",
        "-O",
        show_default="O3",
        rich_help_panel=_COMPILE,
        help="O0 to O3, or 0 to 3 ('tvm-ext passes list').",
    ),
]
DisabledPasses = Annotated[
    list[str] | None,
    typer.Option(
        "--disable-pass",
        metavar="NAME",
        rich_help_panel=_COMPILE,
        help="Leave out a pass; repeatable.",
    ),
]
PassConfig = Annotated[
    list[str] | None,
    typer.Option(
        "--pass-config",
        metavar="PASS.OPTION=VALUE",
        rich_help_panel=_COMPILE,
        help="Set an option of a pass; repeatable.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        show_default="cores of the target",
        rich_help_panel=_COMPILE,
        help="Number of CPU cores to compile for and to run on.",
    ),
]
Tf32 = Annotated[
    bool,
    typer.Option(
        "--tf32",
        rich_help_panel=_COMPILE,
        help="Multiply float32 in the tensor cores of a GPU, with 10 bits of mantissa.",
    ),
]
Records = Annotated[
    list[Path] | None,
    typer.Option(
        "--records",
        metavar="FOLDER",
        rich_help_panel=_COMPILE,
        help="Use what 'tvm-ext tune' found; repeatable, the first that knows a kernel counts.",
    ),
]
RequireRecords = Annotated[
    bool,
    typer.Option(
        "--require-records",
        rich_help_panel=_COMPILE,
        help="Fail when a kernel has no record.",
    ),
]

InputFile = Annotated[
    Path | None,
    typer.Option(
        "--inputs", metavar="FILE.npz", help="Arrays by input name: .npz, or a folder of .npy."
    ),
]
FillWith = Annotated[
    Fill | None, typer.Option("--fill", show_default="random", help="Make the inputs up.")
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="DIM=N",
        help="Size of a dynamic dimension in made-up inputs; repeatable.",
    ),
]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, show_default="0", help="Seed of the random inputs.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
