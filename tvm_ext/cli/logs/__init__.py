"""``tvm-ext logs``: what a folder of records holds, and what can be done with it."""

from tvm_ext.cli import options
from tvm_ext.cli.logs import edit_records, inspect_records

app = options.command_group("Show, compare, merge, shorten and repair folders of tuning records.")

app.command("show", epilog=inspect_records.SHOW_EXAMPLE)(inspect_records.show_command)
app.command("best", epilog=inspect_records.BEST_EXAMPLE)(inspect_records.best_command)
app.command("stats", epilog=inspect_records.STATS_EXAMPLE)(inspect_records.stats_command)
app.command("diff", epilog=inspect_records.DIFF_EXAMPLE)(inspect_records.diff_command)
app.command("verify", epilog=inspect_records.VERIFY_EXAMPLE)(inspect_records.verify_command)
app.command("export", epilog=edit_records.EXPORT_EXAMPLE)(edit_records.export_command)
app.command("merge", epilog=edit_records.MERGE_EXAMPLE)(edit_records.merge_command)
app.command("prune", epilog=edit_records.PRUNE_EXAMPLE)(edit_records.prune_command)
app.command("repair", epilog=edit_records.REPAIR_EXAMPLE)(edit_records.repair_command)
