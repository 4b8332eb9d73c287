"""Records in forms that other programs read."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvm_ext.configs.atomic_file import write_text
from tvm_ext.configs.errors import RecordsError
from tvm_ext.tuning.logs.best_records import (
    RecordKinds,
    best_records,
    candidate_results,
    grouped_trials,
    kept,
)
from tvm_ext.tuning.logs.database_files import target_text, write_database
from tvm_ext.tuning.logs.lines import locked
from tvm_ext.tuning.logs.record_folder import Records, has_records
from tvm_ext.tuning.logs.trial_log import TRIALS, Trial


def export_records(records: Records, output: Path, is_folder: bool = False) -> int:
    """Writes ``records`` to ``output`` in the form that its name asks for, and says how many.

    A name that ends in ".csv" or ".json" gets all trials; one that ends in ".jsonl" a log with the
    best trial of each kernel on each target that beats the default, fit to be shipped; a folder,
    whether it exists or ``is_folder`` says so, gets MetaSchedule's two files with the best record
    of each kernel on each target. Times of a model stand only where nothing was measured.

    Raises
    ------
    RecordsError
        The name says no form, or the folder holds records.
    OutputPathError
        A file cannot be written.
    """
    if is_folder or output.is_dir():
        return export_best(records, output)
    if output.suffix == ".csv":
        write_text(output, trials_csv(records.trials))
    elif output.suffix == ".json":
        write_text(output, trials_json(records.trials))
    elif output.suffix == ".jsonl":
        chosen = winners(records.trials)
        write_text(output, "".join(trial.to_line() + "\n" for trial in chosen))
        return len(chosen)
    else:
        raise RecordsError(
            f"cannot export to {str(output)!r}: its ending names no format; expected .csv, .json, "
            ".jsonl, or a folder (with '/' at its end): choose one of them"
        )
    return len(records.trials)


def export_best(records: Records, output: Path) -> int:
    """Writes MetaSchedule's two files with the best record of each kernel on each target.

    They have no place for what a time is, so the trials behind records of a model go beside them.
    """
    if has_records(output):
        raise RecordsError(
            f"{str(output)!r} holds records already; expected a folder without: choose another "
            "with --output"
        )
    chosen = list(best_records(records.files, records.trials).values())
    kinds = RecordKinds(records.trials)
    modelled = [trial for record in chosen for trial in kinds.modelled_trials(record)]
    used = {record.workload for record in chosen}
    stored = records.files.workloads
    with locked(output):
        if modelled:
            write_text(output / TRIALS, "".join(trial.to_line() + "\n" for trial in modelled))
        write_database(output, [stored[name] for name in stored if name in used], chosen)
    return len(chosen)


def winners(trials: list[Trial]) -> list[Trial]:
    """The best trial of each kernel on each target, where it beats the default.

    Without the turns, and without names of models and nodes: a log that knows kernels only.
    """
    chosen = []
    for own in grouped_trials(trials).values():
        best, *_ = [*kept(candidate_results(own)), None]
        if best is None or best.trial.is_default:
            continue
        bare = {"samples": [], "reference_samples": [], "origins": [], "model": ""}
        told = {"seconds": best.seconds, "spread": best.spread}
        chosen.append(best.trial.model_copy(update={**bare, **told}))
    return chosen


def trials_csv(trials: list[Trial]) -> str:
    """A table with a row for each trial; times of a kernel are in microseconds."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows([value(trial) for value in _COLUMNS.values()] for trial in trials)
    return table.getvalue()


def trials_json(trials: list[Trial]) -> str:
    """A list of all trials, with the keys of the log."""
    return json.dumps([t.model_dump(mode="json") for t in trials], allow_nan=False) + "\n"


def _microseconds(trial: Trial) -> str:
    return f"{trial.seconds * 1e6:.6g}" if trial.seconds is not None else ""


_COLUMNS: dict[str, Callable[[Trial], Any]] = {
    "run": lambda t: t.run,
    "time": lambda t: t.time,
    "model": lambda t: t.model,
    "kernel": lambda t: t.kernel,
    "kernel_name": lambda t: t.kernel_name,
    "origins": lambda t: "; ".join(t.origins),
    "target": lambda t: target_text(t.target),
    "candidate": lambda t: t.candidate,
    "template": lambda t: t.template,
    "decisions": lambda t: " ".join(f"{name}={value}" for name, value in t.decisions.items()),
    "is_default": lambda t: int(t.is_default),
    "purpose": lambda t: t.purpose,
    "status": lambda t: t.status,
    "message": lambda t: t.message,
    "microseconds": lambda t: _microseconds(t) if t.is_measured else "",
    "modelled_microseconds": lambda t: _microseconds(t) if t.is_modelled else "",
    "spread": lambda t: f"{t.spread:.4g}",
    "samples": lambda t: len(t.samples),
    "build_seconds": lambda t: f"{t.build_seconds:.4g}",
    "run_seconds": lambda t: f"{t.run_seconds:.4g}",
    "seed": lambda t: t.seed,
    "host_cpu": lambda t: t.host_cpu,
    "device": lambda t: t.device,
}
