"""Ratios of former versions, and whether a new run of ``cpu.py`` fell behind them.

    python benchmarks/cpu.py a.onnx b.onnx --json new.json
    python benchmarks/history.py check new.json   # exit code 1 when something became slower
    python benchmarks/history.py add new.json     # keeps its ratios in benchmarks/history

A ratio is ONNX Runtime's time by ours within one run, so that a slower clock hits both. It is
compared with the newest run that is kept of the same class of machine, which is the CPU's name and
the count of threads. The rule:

- A model's noise is the root of the sum of squares of four spreads, which are the distances between
  the quartiles as shares of the median, of both programs in both runs.
- A model fails when its ratio fell by more than its noise, but by at least 5 %, and always by 30 %.
- All fail when the geometric mean of the models that both runs have fell by more than the noise of
  the mean (the root of the sum of squares of their noises, by their number), but by at least 3 %.
- A model whose answer is wrong or missing now fails, if it was right before.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from results import OURS_NAME, geometric_mean

from tvm_ext.configs.atomic_file import write_text
from tvm_ext.errors import InputError, TvmExtError

FOLDER = Path(__file__).parent / "history"
PEER = "onnxruntime"
LEAST_FALL, MOST_FALL, LEAST_MEAN_FALL = 0.05, 0.3, 0.03


@dataclass(frozen=True)
class Ratio:
    """ONNX Runtime's time by ours for one model, with the spreads of the two."""

    ratio: float
    our_spread: float
    peer_spread: float


@dataclass(frozen=True)
class Entry:
    """What is kept of one run: a class of machine, versions, and a ratio a model."""

    cpu: str
    threads: int
    date: str
    versions: dict[str, str]
    models: dict[str, Ratio]

    @property
    def machine_class(self) -> str:
        """The name of the folder of such machines."""
        name = re.sub(r"[^a-z0-9]+", "-", self.cpu.lower()).strip("-")
        return f"{name}-{self.threads}-threads"

    @property
    def file_name(self) -> str:
        """By version and day; a second run of one day takes the place of the first."""
        return f"{self.versions[OURS_NAME]}-{self.date[:10]}.json"


@dataclass(frozen=True)
class Verdict:
    """One model, or the mean: ratios then and now, the fall that is allowed, and the real one."""

    name: str
    before: float
    now: float
    allowed: float

    @property
    def fall(self) -> float:
        """The share of the former ratio that is lost; negative for a gain."""
        return 1 - self.now / self.before

    @property
    def failed(self) -> bool:
        """Whether the fall is more than noise explains."""
        return self.fall > self.allowed

    def __str__(self) -> str:
        change = f"{-100 * self.fall:+.1f} %"
        state = "SLOWER" if self.failed else "ok"
        return (
            f"{state:6}  {self.name}: {self.before:.2f} -> {self.now:.2f}  ({change}, allowed "
            f"-{100 * self.allowed:.1f} %)"
        )


def entry_of(report: Mapping[str, Any]) -> Entry:
    """What is kept of the JSON of ``cpu.py``; raises InputError for anything else."""
    try:
        models = {
            model["name"]: ratio
            for model in report["models"]
            if (ratio := _ratio_of(model["programs"])) is not None
        }
        machine = report["machine"]["summary"].removeprefix("this machine: ")
        threads = report["threads"]
        versions = {name: report["versions"][name] for name in (OURS_NAME, PEER)}
        entry = Entry(machine, threads, report["date"], versions, models)
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise InputError(
            f"the file lacks {error}; expected what 'benchmarks/cpu.py --json' writes: measure anew"
        ) from error
    if not models:
        raise InputError(
            "no model of the file has a right answer of both programs; expected one at least: "
            f"measure models with {PEER} among the peers"
        )
    return entry


def read_entry(path: Path) -> Entry:
    """An entry of the history."""
    data = _read(path)
    try:
        models = {name: Ratio(**ratio) for name, ratio in data.pop("models").items()}
        return Entry(**data, models=models)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is no entry ({error}); expected what 'history.py add' writes: remove the file"
        ) from error


def newest(folder: Path, machine_class: str) -> Entry | None:
    """The newest entry of a class of machine; None where none is kept."""
    entries = [read_entry(path) for path in sorted((folder / machine_class).glob("*.json"))]
    return max(entries, key=lambda entry: entry.date, default=None)


def compare(before: Entry, now: Entry) -> list[Verdict]:
    """A verdict for each model that both have, and one for their mean."""
    common = [name for name in before.models if name in now.models]
    if not common:
        raise InputError(
            "the runs have no model in common; expected one of "
            f"{', '.join(before.models)}: measure one of these"
        )
    noises = [_noise(before.models[name], now.models[name]) for name in common]
    verdicts = [
        Verdict(
            name,
            before.models[name].ratio,
            now.models[name].ratio,
            min(max(noise, LEAST_FALL), MOST_FALL),
        )
        for name, noise in zip(common, noises, strict=True)
    ]
    allowed = min(max(math.hypot(*noises) / len(noises), LEAST_MEAN_FALL), MOST_FALL)
    means = [geometric_mean(entry.models[name].ratio for name in common) for entry in (before, now)]
    return [*verdicts, Verdict("geometric mean", means[0] or 1.0, means[1] or 1.0, allowed)]


def lost_models(before: Entry, report: Mapping[str, Any]) -> list[str]:
    """Models that were measured now and have no right answer any more."""
    return [
        model["name"]
        for model in report["models"]
        if model["name"] in before.models and _ratio_of(model["programs"]) is None
    ]


def check(report: Mapping[str, Any], folder: Path) -> int:
    """Prints the verdicts on a report; 1 when one of them fails."""
    now = entry_of(report)
    before = newest(folder, now.machine_class)
    if before is None:
        print(f"nothing is kept of {now.machine_class}: 'history.py add' begins it")
        return 0
    print(f"beside {before.file_name} of {before.machine_class}, ONNX Runtime's time by ours:")
    lost = lost_models(before, report)
    for name in lost:
        print(f"WRONG   {name}: its answer is wrong or missing now, and was right then")
    verdicts = compare(before, now)
    for verdict in verdicts:
        print(verdict)
    return 1 if lost or any(verdict.failed for verdict in verdicts) else 0


def add(report: Mapping[str, Any], folder: Path) -> Path:
    """Keeps the ratios of a report; returns the file."""
    entry = entry_of(report)
    path = folder / entry.machine_class / entry.file_name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(asdict(entry), indent=2, allow_nan=False) + "\n")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``check`` or ``add``; exit code 2 for files that are none of ``cpu.py``."""
    parser = argparse.ArgumentParser(
        prog="history.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["check", "add"])
    parser.add_argument("report", type=Path, metavar="NEW.json")
    parser.add_argument("--history", type=Path, default=FOLDER, metavar="FOLDER")
    options = parser.parse_args(arguments)
    try:
        report = _read(options.report)
        if options.command == "check":
            return check(report, options.history)
        print(f"Saved {add(report, options.history)}")
    except TvmExtError as error:
        print(f"history.py: error: {error}", file=sys.stderr)
        return 2
    return 0


def _ratio_of(programs: Mapping[str, Mapping[str, Any]]) -> Ratio | None:
    ours, peer = programs.get(OURS_NAME), programs.get(PEER)
    if ours is None or peer is None or ours["wrong"] or peer["wrong"]:
        return None
    return Ratio(peer["milliseconds"] / ours["milliseconds"], ours["spread"], peer["spread"])


def _noise(before: Ratio, now: Ratio) -> float:
    return math.hypot(before.our_spread, before.peer_spread, now.our_spread, now.peer_spread)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as JSON ({error}); expected a file of 'benchmarks/cpu.py "
            "--json': name that"
        ) from error
    if not isinstance(data, dict):
        raise InputError(f"{path} holds no object; expected a file of 'benchmarks/cpu.py --json'")
    return data


if __name__ == "__main__":
    sys.exit(main())
