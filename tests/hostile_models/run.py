"""Compiles damaged models: each must match ONNX Runtime, or end in one clear line.

python tests/hostile_models/run.py                       500 of them: counts, and what failed
python tests/hostile_models/run.py --seed 1 --count 100  others
python tests/hostile_models/run.py --only 17,203         these of them, with what was said
python tests/hostile_models/run.py --inputs              sound models run with damaged inputs
python tests/hostile_models/run.py --guard-pages         any access beside a tensor is a crash
python tests/hostile_models/run.py --json                one object a case, for other programs

With guard pages, each tensor that a program reads or writes, constants and what kernels allocate
among them, is alone on its pages, and the pages beside it end the process when they are touched.
Each case runs twice: first tensors end at such a page, then they begin at one. Memory begins as
NaN, so that a number that is read before it was written does not match. Not guarded are arrays
that a kernel keeps on its stack.
"""

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

# Kernels are tiny here: threads cost more than they bring.
os.environ.setdefault("TVM_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.simplefilter("ignore")
# The test folders are no packages: what they share has one of its own.
sys.path.insert(1, str(Path(__file__).parents[1] / "shared"))

from case_workers import Job, run_cases  # noqa: E402
from cases import Case, DamagedInputs, DamagedModel  # noqa: E402
from guard_pages import ARENA_GIBIBYTES, is_guarded, restart_with_guard_pages  # noqa: E402
from run_case import (  # noqa: E402
    FAILURES,
    RAN,
    STATUSES,
    Outcome,
    compare_case,
    compile_case,
    lost_case,
    lost_reference,
)

# Of the addresses that guard pages take, none is used twice.
_GUARDED_CASES_PER_PROCESS = 50


def outcomes(kind: type[Case], seed: int, numbers: Iterable[int], processes: int) -> list[Outcome]:
    """Compiles and runs all, then compares those that ran, each in processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "secret").write_bytes(b"secret" * 200)
        cases = {number: kind(seed, number, Path(folder)) for number in numbers}
        job = Job(list(cases.values()), compile_case, lost_case)
        if is_guarded():
            job = replace(
                job,
                gibibytes=job.gibibytes + ARENA_GIBIBYTES,
                cases_per_process=_GUARDED_CASES_PER_PROCESS,
            )
        compiled = list(run_cases(job, processes))
        ran = [(cases[o.number], o) for o in compiled if o.status == RAN]
        compared = list(run_cases(Job(ran, compare_case, lost_reference), processes))
    found = [*(o for o in compiled if o.status != RAN), *compared]
    return sorted(found, key=lambda outcome: outcome.number)


def summary(found: Sequence[Outcome]) -> str:
    """Counts of every status, the slowest and the largest, then what failed."""
    counts = Counter(outcome.status for outcome in found)
    lines = [f"{len(found)} cases: " + ", ".join(f"{counts[s]} {s}" for s in STATUSES)]
    if found:
        slow, large = max(found, key=lambda o: o.seconds), max(found, key=lambda o: o.megabytes)
        lines.append(f"slowest {slow.seconds} s: {slow.number} {slow.name}")
        lines.append(f"most memory {large.megabytes:.0f} MiB: {large.number} {large.name}")
    lines += [_line(outcome) for outcome in found if outcome.status in FAILURES]
    return "\n".join(lines)


def _line(outcome: Outcome) -> str:
    return f"{outcome.number:5} {outcome.status:15}{outcome.name}: {outcome.reason[:300]}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=500, help="how many cases")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--only", help="numbers of cases, with commas between them")
    parser.add_argument("--inputs", action="store_true", help="damage inputs, not models")
    parser.add_argument(
        "--guard-pages", action="store_true", help="tensors lie between pages without access"
    )
    parser.add_argument("--json", action="store_true", help="print outcomes as JSON")
    arguments = parser.parse_args()
    if arguments.guard_pages:
        restart_with_guard_pages()
    kind = DamagedInputs if arguments.inputs else DamagedModel
    only = [int(number) for number in arguments.only.split(",")] if arguments.only else None
    numbers = only or range(arguments.count)
    found = outcomes(kind, arguments.seed, numbers, arguments.jobs)
    if arguments.json:
        json.dump([asdict(outcome) for outcome in found], sys.stdout, indent=1)
    else:
        print("\n".join(map(_line, found)) if only else summary(found))
    return 1 if any(outcome.status in FAILURES for outcome in found) else 0


if __name__ == "__main__":
    sys.exit(main())
