"""``tvm-ext cache``: the programs and kernels that compilations left for later ones."""

from datetime import datetime
from typing import TYPE_CHECKING

import typer

from tvm_ext.cli import options
from tvm_ext.cli.stderr_lines import progress_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from tvm_ext.compiler.program_cache import CacheEntry, ProgramCache

app = options.command_group("Show, check or clear the cache of compiled models.")

_OFF = "The cache is turned off (TVM_EXT_CACHE)."


@app.command("show", epilog="Example: tvm-ext cache show --json")
def show_command(json_output: options.Json = False) -> None:
    """List the models in the cache, the most recently used one first."""
    from tvm_ext.cli import output as out

    cache = _cache()
    found = cache.entries() if cache is not None else []
    if json_output:
        out.print_json(_as_json(cache, found))
    elif cache is None:
        out.print_text(_OFF)
    elif cache.folder.is_dir() and not cache.is_private():
        out.print_text(
            f"{cache.folder} is not used: others may write to it; expected a folder that only you "
            "may write to: take their permission away (chmod go-w), or set TVM_EXT_CACHE_DIR"
        )
    elif not found:
        out.print_text(f"There are no programs in {cache.folder}.")
    else:
        out.print_rich(_table(cache, found))


@app.command("clear", epilog="Example: tvm-ext cache clear")
def clear_command(json_output: options.Json = False) -> None:
    """Delete all programs and kernels in the cache. Models are then compiled again."""
    from tvm_ext.cli import output as out

    cache = _cache()
    deleted = cache.clear() if cache is not None else []
    if json_output:
        out.print_json(_as_json(cache, deleted))
    else:
        out.print_text(_OFF if cache is None else f"Deleted {_counted(deleted)}.")


@app.command("verify", epilog="Example: tvm-ext cache verify")
def verify_command(json_output: options.Json = False) -> None:
    """Read every entry and delete the damaged ones. The exit code is 1 if any was damaged."""
    from tvm_ext.cli import output as out

    cache = _cache()
    with progress_line():
        damaged = cache.delete_damaged() if cache is not None else []
    if json_output:
        out.print_json(_as_json(cache, damaged))
    elif cache is None:
        out.print_text(_OFF)
    else:
        whole = f"{_counted(cache.entries())}: whole."
        out.print_text(f"Deleted {_counted(damaged)}, damaged. {whole}" if damaged else whole)
    if damaged:
        raise typer.Exit(1)


def _cache() -> "ProgramCache | None":
    from tvm_ext.compiler.program_cache import program_cache

    return program_cache()


def _counted(entries: "Sequence[CacheEntry]") -> str:
    from tvm_ext.report.units import format_bytes, format_count

    kernels = sum(entry.is_kernel for entry in entries)
    counts = format_count(len(entries) - kernels, "program")
    if kernels:
        counts += f" and {format_count(kernels, 'kernel')}"
    return f"{counts} ({format_bytes(sum(entry.size for entry in entries))})"


def _as_json(cache: "ProgramCache | None", entries: "Sequence[CacheEntry]") -> dict[str, object]:
    described = []
    kernels = [entry for entry in entries if entry.is_kernel]
    for entry in (entry for entry in entries if not entry.is_kernel):
        manifest = entry.manifest()
        described.append(
            {
                "key": entry.path.stem,
                "model": manifest.model_name if manifest is not None else None,
                "target": manifest.target.name if manifest is not None else None,
                "bytes": entry.size,
                "used": datetime.fromtimestamp(entry.used).isoformat(timespec="seconds"),
            }
        )
    folder = str(cache.folder) if cache is not None else None
    limit = cache.limit_bytes if cache is not None else None
    return {
        "folder": folder,
        "limit_bytes": limit,
        "programs": described,
        "kernels": {"count": len(kernels), "bytes": sum(entry.size for entry in kernels)},
    }


def _table(cache: "ProgramCache", entries: "Sequence[CacheEntry]") -> "Table":
    from rich.text import Text

    from tvm_ext.report.terminal_tables import FlexibleTable, ShortName
    from tvm_ext.report.units import ABSENT, format_bytes, format_count, plain

    title = f"Programs in {plain(str(cache.folder))}, at most {format_bytes(cache.limit_bytes)}"
    table = FlexibleTable(title, "~Model", "Target", ">Size", "Last used")
    kernels = [entry for entry in entries if entry.is_kernel]
    for entry in (entry for entry in entries if not entry.is_kernel):
        manifest = entry.manifest()
        name, target = (manifest.model_name, manifest.target.name) if manifest else (ABSENT, ABSENT)
        used = datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
        table.add_row(ShortName(name), Text(plain(target)), format_bytes(entry.size), used)
    if kernels:
        what = f"code of {format_count(len(kernels), 'kernel')}"
        table.add_row(Text(what), "", format_bytes(sum(entry.size for entry in kernels)), "")
    table.add_section()
    total = format_bytes(sum(entry.size for entry in entries))
    programs = len(entries) - len(kernels)
    table.add_row(Text(f"{programs:,} in all"), "", total, "")
    return table
