"""Compares thousands of random graphs with ONNX Runtime, with all passes and with each left out.

Graphs come from this folder's own builder (fixed sizes, dynamic sizes, If and Loop, several
outputs) and from NNSmith where it is installed. Each is compiled with all passes, and once more
with one optional pass left out that acts on it. Both programs run on many inputs: ordinary numbers,
other sizes, NaN, infinities, zeros, denormals. ONNX Runtime runs without its graph optimisations,
and outputs may differ by the bounds that `tvm-ext check` has. A result that ONNX Runtime itself
changes when its inputs move by a millionth says nothing, and is counted apart.

    python tests/random_graphs/campaign.py --graphs 4000 --inputs 25 --leave-out-passes
    python tests/random_graphs/campaign.py --minutes 30 --sources nnsmith --output failures
    python tests/random_graphs/campaign.py --again "static 0:17"
    python tests/random_graphs/campaign.py --sources memory --poison --graphs 10000 --inputs 3 \
        --together 40

With ``--poison`` each program fills its arena with NaN before it begins, and every buffer behind
its last use, so that what reads memory wrongly shows. Four of five are compiled without fusion,
which would leave graphs as small as these without buffers. With ``--together 40`` that many graphs
are drawn at a time, and compiled as few programs, in which their nodes take turns. A graph whose
results are not those of ONNX Runtime is tried again alone. Where it is right then, the program is
the failure. Two hundred graphs for plans of memory that follow each other have few kernels among
them, which are scheduled and compiled once.

Each failure gets a folder with the model, its inputs, and a file that says how to see it again; a
difference is reduced to the fewest nodes that show it. Exit code 1 when there is a failure, 2 for
bad usage.
"""

import argparse
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import onnx

from tvm_ext.check.inputs import write_inputs
from tvm_ext.check.reduce import reduce_model
from tvm_ext.errors import TvmExtError
from tvm_ext.tuning.worker import ForkedWorker, WorkerFailure, WorkerTimeout, WorkRaised

# What several test folders use; they are no packages.
sys.path.insert(1, str(Path(__file__).parents[1] / "shared"))

from joined_graphs import Differing, try_together
from nnsmith_graphs import is_installed
from trial import (
    COMPARED,
    NNSMITH,
    SOURCES,
    Case,
    Finding,
    Outcome,
    build_case,
    optional_passes,
    try_case,
)

_GRAPH_SECONDS = 120.0
# More for each of those that are tried together.
_SECONDS_TOGETHER = 10.0
# A process that has compiled so many graphs is replaced: what libraries keep adds up.
_GRAPHS_A_PROCESS = 200
# Of those that are tried together, since few of their kernels are new.
_JOINED_GRAPHS_A_PROCESS = 2000


@dataclass
class Campaign:
    """What was tried, and what came of it.

    Attributes
    ----------
    folder : Path
        Gets a folder for each failure, and the summary.
    inputs : int
        Inputs for each graph.
    counts, sources : Counter of str
        Pairs by their outcome, and graphs by their source.
    left_out : dict of str to int
        How often each pass was left out; empty where none is to be.
    poison : bool
        Whether free memory is filled with NaN.
    failures : list of dict
        What the files of the failures say.
    """

    folder: Path
    inputs: int
    reduce: bool
    left_out: dict[str, int]
    poison: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)
    begun: float = field(default_factory=time.monotonic)

    def note(self, case: Case, outcome: Outcome) -> None:
        """Adds one graph; writes its failures."""
        with self.lock:
            self.sources[case.source] += 1
            self.counts.update(outcome.counts)
            if outcome.left_out:
                self.left_out[outcome.left_out] += 1
        for finding in outcome.findings:
            self._write(case, finding)

    def note_program(self, program: Case, finding: Finding) -> None:
        """Adds what is wrong with a program of several graphs that are right alone."""
        self.counts["pairs that fail"] += 1
        self._write(program, finding)

    def summary(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "graphs": sum(self.sources.values()),
            "pairs": sum(self.counts[name] for name in COMPARED),
            "seconds": round(time.monotonic() - self.begun, 1),
            "sources": dict(self.sources),
            "counts": dict(sorted(self.counts.items())),
            "left_out": self.left_out,
            "failures": self.failures,
        }

    def write_summary(self) -> None:
        """Writes it beside the failures; a long campaign that ends early leaves what it has."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.summary(), indent=2)
        (self.folder / "summary.json").write_text(text + "\n", encoding="utf-8")

    def _write(self, case: Case, finding: Finding) -> None:
        with self.lock:
            number = len(self.failures) + 1
            said = {
                "folder": f"failure-{number:04d}",
                "case": f"{case.source} {case.seed}",
                "kind": finding.kind,
                "left_out": finding.left_out,
                "numbers": finding.numbers,
                "message": finding.message,
            }
            self.failures.append(said)
        folder = self.folder / said["folder"]
        folder.mkdir(parents=True, exist_ok=True)
        model = folder / "model.onnx"
        model.write_bytes(case.model)
        beside = write_inputs(model, finding.inputs or case.inputs)
        command = ["tvm-ext", "check", model.name]
        command += ["--inputs", beside.name] if beside else []
        command += ["--disable-pass", finding.left_out] if finding.left_out else []
        command += ["--opt-level", case.opt_level] if case.opt_level != "O3" else []
        for name, options in case.pass_config.items():
            for option, value in options.items():
                command += ["--pass-config", f"{name}.{option}={value}"]
        text = onnx.printer.to_text(onnx.load_from_string(case.model))
        lines = [*(f"{k}: {v}" for k, v in said.items()), f"see it again: {shlex.join(command)}"]
        # What reduces a model compiles it at O3.
        is_different = finding.kind in ("difference", "shapes")
        if self.reduce and is_different and case.opt_level == "O3":
            lines.append(_reduced(folder, case, finding))
        (folder / "failure.txt").write_text("\n".join([*lines, "", text]), encoding="utf-8")
        print(f"failure {number}: {case.source} {case.seed}, {lines[2]}: {finding.message}")


def _reduced(folder: Path, case: Case, finding: Finding) -> str:
    """One line about the reduced model, which is written beside the model."""
    without = (finding.left_out,) if finding.left_out else ()
    try:
        reduction = reduce_model(
            folder / "model.onnx",
            folder / "reduced.onnx",
            inputs=finding.inputs,
            disabled_passes=without,
            pass_config=case.pass_config,
            time_limit=_GRAPH_SECONDS,
        )
    except TvmExtError as error:
        return f"reduced: not, {error}"
    return f"reduced: {' '.join(reduction.sentences())}"


class _Station:
    """A process that builds and tries graphs, replaced now and then and when it ends."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._worker = ForkedWorker()
        self._graphs = 0

    def graphs(self, named: Sequence[tuple[str, str]]) -> None:
        """Builds and tries graphs, of which the sources and seeds are given."""
        self._graphs += len(named)
        most = _GRAPHS_A_PROCESS if len(named) == 1 else _JOINED_GRAPHS_A_PROCESS
        if self._graphs >= most:
            self._graphs = 0
            self._worker.stop()
        cases = [case for source, seed in named if (case := self._case(source, seed))]
        outcomes: list[Outcome | Differing | None] = [None] * len(cases)
        if len(cases) > 1:
            seconds = _GRAPH_SECONDS + len(cases) * _SECONDS_TOGETHER
            # What failed is found out when each is tried alone.
            with suppress(WorkerFailure):
                outcomes = self._worker.call(
                    try_together, cases, self._campaign.inputs, timeout=seconds
                )
        for case, outcome in zip(cases, outcomes, strict=True):
            if isinstance(outcome, Outcome):
                self._campaign.note(case, outcome)
                continue
            alone = self._alone(case)
            self._campaign.note(case, alone)
            if len(cases) > 1:
                self._campaign.counts["graphs tried again alone"] += 1
            if outcome is not None and alone.agrees():
                # Else the graph is at fault and not the program that it was part of.
                self._campaign.note_program(outcome.program, outcome.finding)

    def _case(self, source: str, seed: str) -> Case | None:
        campaign = self._campaign
        try:
            case = self._worker.call(
                build_case, source, seed, campaign.poison, timeout=_GRAPH_SECONDS
            )
        except WorkerFailure as error:
            # The library that draws graphs may fail; that is no failure of ours.
            print(f"no graph {source} {seed}: {error}")
            case = None
        if case is None:
            campaign.counts[f"graphs not drawn, {source}"] += 1
        return case

    def _alone(self, case: Case) -> Outcome:
        campaign = self._campaign
        before = dict(campaign.left_out)
        try:
            arguments = (case, campaign.inputs, before)
            outcome = self._worker.call(try_case, *arguments, timeout=_GRAPH_SECONDS)
        except WorkRaised as error:
            outcome = Outcome(findings=[Finding("defect", "", "", f"{error.kind}: {error}")])
        except WorkerFailure as error:
            kind = "timeout" if isinstance(error, WorkerTimeout) else "crash"
            outcome = Outcome(findings=[Finding(kind, "", "", str(error))])
        return outcome

    def stop(self) -> None:
        """Ends the process."""
        self._worker.stop()


def _run(campaign: Campaign, options: argparse.Namespace, station_number: int) -> None:
    """The graphs of one worker: every ``workers``-th."""
    station = _Station(campaign)
    deadline = campaign.begun + 60 * options.minutes
    numbers = list(range(station_number, options.graphs, options.workers))
    try:
        for first in range(0, len(numbers), options.together):
            if time.monotonic() > deadline:
                return
            own = numbers[first : first + options.together]
            sources = [options.sources[number % len(options.sources)] for number in own]
            seeds = [f"{options.seed}:{number}" for number in own]
            station.graphs(list(zip(sources, seeds, strict=True)))
            if any(number % 50 == 0 for number in own):
                _tell(campaign, own[-1])
    finally:
        station.stop()


def _tell(campaign: Campaign, number: int) -> None:
    with campaign.lock:
        campaign.write_summary()
        agree, failed = campaign.counts["pairs that agree"], len(campaign.failures)
    seconds = time.monotonic() - campaign.begun
    print(f"graph {number}: {agree:,} pairs agree, {failed} failures, {seconds:.0f} s", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the campaign; the module's docstring has the exit codes."""
    options = _parser().parse_args(arguments)
    problem = _problem(options)
    if problem:
        print(f"campaign.py: error: {problem}", file=sys.stderr)
        return 2
    names = optional_passes() if options.leave_out_passes else []
    left_out = dict.fromkeys(names, 0)
    campaign = Campaign(options.output, options.inputs, options.reduce, left_out, options.poison)
    if options.again:
        source, _, seed = options.again.rpartition(" ")
        station = _Station(campaign)
        try:
            station.graphs([(source, seed)])
        finally:
            station.stop()
    else:
        with ThreadPoolExecutor(options.workers) as pool:
            list(pool.map(lambda n: _run(campaign, options, n), range(options.workers)))
    campaign.write_summary()
    print(json.dumps({k: v for k, v in campaign.summary().items() if k != "failures"}, indent=2))
    return 1 if campaign.failures else 0


def _problem(options: argparse.Namespace) -> str:
    unknown = [name for name in options.sources if name not in SOURCES]
    if unknown:
        return f"--sources names '{unknown[0]}'; expected some of {', '.join(SOURCES)}"
    least = min(options.graphs, options.inputs, options.together)
    if least < 1 or options.workers not in (1, 2):
        return (
            f"--graphs {options.graphs}, --inputs {options.inputs}, --together {options.together} "
            f"and --workers {options.workers} were given; expected at least 1 of each, and 1 or 2 "
            "workers"
        )
    if options.together > 1 and options.leave_out_passes:
        return "--together was given with --leave-out-passes; expected one of them: leave one away"
    if NNSMITH in options.sources and not is_installed():
        if options.sources_given:
            return (
                "--sources names nnsmith, which is not installed; expected it: pip install nnsmith"
            )
        print("Graphs of NNSmith are left out, since it is not installed: pip install nnsmith")
        options.sources = [name for name in options.sources if name != NNSMITH]
    return ""


class _Sources(argparse.Action):
    """Notes that sources were asked for, so that a missing one is an error."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        namespace.sources = [name.strip() for name in values.split(",") if name.strip()]
        namespace.sources_given = True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="campaign.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--graphs", type=int, default=1000, help="how many; default %(default)s")
    add("--inputs", type=int, default=25, help="inputs for each graph; default %(default)s")
    add("--seed", type=int, default=0)
    add("--minutes", type=float, default=float("inf"), help="stop after this time")
    add("--workers", type=int, default=1, help="processes, 1 or 2; default %(default)s")
    add("--poison", action="store_true", help="NaN in all memory that is free")
    add("--together", type=int, default=1, metavar="N", help="graphs drawn and compiled at a time")
    add("--leave-out-passes", action="store_true", help="one more program a graph")
    add(
        "--sources",
        action=_Sources,
        default=list(SOURCES),
        metavar="LIST",
        help=f"of {','.join(SOURCES)}; all by default",
    )
    add("--output", type=Path, default=Path("random-graph-failures"), metavar="FOLDER")
    add("--no-reduce", dest="reduce", action="store_false", help="keep failing models whole")
    add("--again", default="", metavar="CASE", help="this one graph, as a summary names it")
    parser.set_defaults(sources_given=False)
    return parser


if __name__ == "__main__":
    sys.exit(main())
