"""``tvm-ext wafer``: what the models of a wafer-scale mesh say."""

from tvm_ext.cli import options
from tvm_ext.cli.wafer import csl, explain, predict, simulate

app = options.command_group(
    "Model what kernels cost on wafer-scale processors. No such machine is needed."
)

app.command("predict", epilog=predict.EXAMPLE)(predict.predict_command)
app.command("explain", epilog=explain.EXAMPLE)(explain.explain_command)
app.command("simulate", epilog=simulate.EXAMPLE)(simulate.simulate_command)
app.command("csl", epilog=csl.EXAMPLE)(csl.csl_command)
