"""``tvm-ext wafer csl``."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_ext.cli import options
from tvm_ext.cli.options import CompileOptions, WaferTarget, is_saved_model
from tvm_ext.cli.stderr_lines import progress_line
from tvm_ext.errors import InputError

if TYPE_CHECKING:
    from tvm_ext.hardware.wafer.description import WaferDescription
    from tvm_ext.wafer.csl.code import CslCode, Shard

EXAMPLE = "Example: tvm-ext wafer csl model.onnx --kernel 'fused_matmul*' --grid 4x4 -o code"


def csl_command(
    model: options.Model,
    kernel: Annotated[
        str,
        typer.Option(
            "--kernel",
            metavar="NAME",
            help="The kernel: its name or hash, or a pattern with * and ? that one name matches.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Folder for the files. It is made if needed."
        ),
    ],
    target: WaferTarget = "wse2",
    grid: Annotated[
        str | None,
        typer.Option(
            "--grid",
            metavar="ROWSxCOLUMNS",
            show_default="all of the target",
            help="The most PEs that the kernel may use.",
        ),
    ] = None,
    input_shape: options.InputShapes = None,
    opt_level: options.OptLevel = None,
    disable_pass: options.DisabledPasses = None,
    pass_config: options.PassConfig = None,
    pipeline: options.OwnPipeline = None,
    json_output: options.Json = False,
) -> None:
    """Write one kernel of an ONNX model as CSL source: the program of a PE and the layout.

    A matmul is written as SUMMA, and any other kernel as it is scheduled. This
    code has not been compiled by the vendor's compiler.
    """
    if is_saved_model(model):
        raise InputError(f"{model} is a compiled model; expected an ONNX model")
    chosen = CompileOptions.parsed(
        target, input_shape, opt_level, disable_pass, pass_config, pipeline=pipeline
    )
    from tvm_ext.cli import output as out
    from tvm_ext.wafer.csl import require_xdsl

    require_xdsl()
    mesh = _mesh(chosen, grid)
    with progress_line():
        code, schedule = _code(model, kernel, mesh, chosen)
    paths = code.write(output)
    if json_output:
        out.print_json(_to_json(code, schedule, paths))
        return
    out.print_text(
        f"{code.kernel} ({schedule}): {code.rows}x{code.columns} PEs, "
        f"{code.bytes_per_pe:,} bytes of data each"
    )
    for shard in code.shards:
        out.print_text(_described(shard))
    for path in paths:
        out.print_text(f"Saved {path}")


def _code(
    model: Path, kernel: str, mesh: "WaferDescription", chosen: CompileOptions
) -> "tuple[CslCode, str]":
    from tvm_ext.passes.pipeline import build_pipeline
    from tvm_ext.wafer.csl import kernel_code
    from tvm_ext.wafer.csl.model_kernel import model_kernel

    passes = chosen.keywords()
    input_shapes, own = passes.pop("input_shapes"), passes.pop("pipeline")
    pipeline = build_pipeline(**passes, own=own)
    found = model_kernel(model, kernel, mesh, input_shapes, pipeline)
    return kernel_code(found.func, mesh, found.name), found.schedule


def _mesh(chosen: CompileOptions, grid: str | None) -> "WaferDescription":
    from tvm_ext.wafer.model_cost import mesh_target

    machine = mesh_target(chosen.machine())
    if grid is None:
        return machine
    found = re.fullmatch(r"(\d{1,6})x(\d{1,6})", grid)
    if found is None:
        raise InputError(f"--grid is '{grid}'; expected rows and columns, such as 4x4")
    return machine.with_grid(int(found[1]), int(found[2]))


def _to_json(code: "CslCode", schedule: str, paths: list[Path]) -> dict[str, Any]:
    return {
        "kernel": code.kernel,
        "schedule": schedule,
        "rows": code.rows,
        "columns": code.columns,
        "bytes_per_pe": code.bytes_per_pe,
        "files": [str(path) for path in paths],
        "tensors": [
            {
                "name": shard.name,
                "role": shard.role,
                "dtype": shard.dtype,
                "tensor_shape": list(shard.tensor_shape),
                "shape": list(shard.shape),
                "row_steps": list(shard.row_steps),
                "column_steps": list(shard.column_steps),
                "starts": list(shard.starts),
                "order": list(shard.order),
                "row": shard.row,
                "column": shard.column,
            }
            for shard in code.shards
        ],
    }


def _described(shard: "Shard") -> str:
    """One line for people: what of a tensor lies where."""
    sizes = "x".join(str(size) for size in shard.shape)
    whole = "x".join(str(size) for size in shard.tensor_shape)
    places = [
        f"{name} {place}"
        for name, place in (("row", shard.row), ("column", shard.column))
        if place is not None
    ]
    where = f", in {' and '.join(places)} only" if places else ""
    return f"  {shard.role} {shard.name}: {sizes} of {whole} {shard.dtype} a PE{where}"
