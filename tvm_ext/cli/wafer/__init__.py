"""``tvm-ext wafer``: what the models of a wafer-scale mesh say."""

import typer

from tvm_ext.cli.wafer import csl, explain, predict, simulate

app = typer.Typer(help="Ask the models of wafer-scale processors; no such machine is needed.")


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("predict", epilog=predict.EXAMPLE)(predict.predict_command)
app.command("explain", epilog=explain.EXAMPLE)(explain.explain_command)
app.command("simulate", epilog=simulate.EXAMPLE)(simulate.simulate_command)
app.command("csl", epilog=csl.EXAMPLE)(csl.csl_command)
