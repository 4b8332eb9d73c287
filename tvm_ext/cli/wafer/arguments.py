"""Types of options that several of the commands share."""

from typing import Annotated

import typer

MeshTarget = Annotated[
    str,
    typer.Option(
        "--target", "-t", help="A mesh: a preset ('tvm-ext targets list'), or a .toml file."
    ),
]
