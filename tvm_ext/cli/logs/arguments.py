"""Types of the arguments and options that several of these commands share."""

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Folder of records, as 'tvm-ext tune' writes it.")
]
OneTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        show_default="all",
        help="Only this target: 'cpu' for this machine, a preset, a .toml file, or a part of the "
        "name that the tables show.",
    ),
]
