"""``tvm-ext logs``: what a folder of records holds, and what can be done with it."""

import typer

from tvm_ext.cli.logs.edit_records import (
    EXPORT_EXAMPLE,
    MERGE_EXAMPLE,
    PRUNE_EXAMPLE,
    REPAIR_EXAMPLE,
    export_command,
    merge_command,
    prune_command,
    repair_command,
)
from tvm_ext.cli.logs.inspect_records import (
    BEST_EXAMPLE,
    DIFF_EXAMPLE,
    SHOW_EXAMPLE,
    STATS_EXAMPLE,
    VERIFY_EXAMPLE,
    best_command,
    diff_command,
    show_command,
    stats_command,
    verify_command,
)

app = typer.Typer(help="Look into folders of tuning records, join them, and keep them in order.")


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("show", epilog=SHOW_EXAMPLE)(show_command)
app.command("best", epilog=BEST_EXAMPLE)(best_command)
app.command("stats", epilog=STATS_EXAMPLE)(stats_command)
app.command("diff", epilog=DIFF_EXAMPLE)(diff_command)
app.command("verify", epilog=VERIFY_EXAMPLE)(verify_command)
app.command("export", epilog=EXPORT_EXAMPLE)(export_command)
app.command("merge", epilog=MERGE_EXAMPLE)(merge_command)
app.command("prune", epilog=PRUNE_EXAMPLE)(prune_command)
app.command("repair", epilog=REPAIR_EXAMPLE)(repair_command)
