"""``tvm-ext logs``: what a folder of records holds, and what can be done with it."""

import typer

from tvm_ext.cli.logs import best, diff, export, merge, prune, repair, show, stats, verify

app = typer.Typer(help="Look into folders of tuning records, join them, and keep them in order.")


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("show", epilog=show.EXAMPLE)(show.show_command)
app.command("best", epilog=best.EXAMPLE)(best.best_command)
app.command("stats", epilog=stats.EXAMPLE)(stats.stats_command)
app.command("diff", epilog=diff.EXAMPLE)(diff.diff_command)
app.command("verify", epilog=verify.EXAMPLE)(verify.verify_command)
app.command("export", epilog=export.EXAMPLE)(export.export_command)
app.command("merge", epilog=merge.EXAMPLE)(merge.merge_command)
app.command("prune", epilog=prune.EXAMPLE)(prune.prune_command)
app.command("repair", epilog=repair.EXAMPLE)(repair.repair_command)
