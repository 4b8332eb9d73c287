"""Compiles damaged models: each must match ONNX Runtime, or end in one clear line.

python tests/hostile_models/run.py                       500 of them: counts, and what failed
python tests/hostile_models/run.py --seed 1 --count 100  others
python tests/hostile_models/run.py --only 17,203         these of them, with what was said
python tests/hostile_models/run.py --json                one object a case, for other programs
"""

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

# Kernels are tiny here: threads cost more than they bring.
os.environ.setdefault("TVM_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.simplefilter("ignore")
# The test folders are no packages: what they share has one of its own.
sys.path.insert(1, str(Path(__file__).parents[1] / "shared"))

from case_workers import Job, run_cases  # noqa: E402
from run_case import (  # noqa: E402
    FAILURES,
    RAN,
    STATUSES,
    DamagedModel,
    DamagedModelOutcome,
    compare_case,
    compile_case,
    lost_case,
    lost_reference,
)


def outcomes(seed: int, numbers: Iterable[int], processes: int) -> list[DamagedModelOutcome]:
    """Compiles and runs all, then compares those that ran, each in processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "secret").write_bytes(b"secret" * 200)
        cases = {number: DamagedModel(seed, number, Path(folder)) for number in numbers}
        compiled = list(run_cases(Job(list(cases.values()), compile_case, lost_case), processes))
        ran = [(cases[o.number], o) for o in compiled if o.status == RAN]
        compared = list(run_cases(Job(ran, compare_case, lost_reference), processes))
    found = [*(o for o in compiled if o.status != RAN), *compared]
    return sorted(found, key=lambda outcome: outcome.number)


def summary(found: Sequence[DamagedModelOutcome]) -> str:
    """Counts of every status, the slowest and the largest, then what failed."""
    counts = Counter(outcome.status for outcome in found)
    lines = [f"{len(found)} models: " + ", ".join(f"{counts[s]} {s}" for s in STATUSES)]
    if found:
        slow, large = max(found, key=lambda o: o.seconds), max(found, key=lambda o: o.megabytes)
        lines.append(f"slowest {slow.seconds} s: {slow.number} {slow.name}")
        lines.append(f"most memory {large.megabytes:.0f} MiB: {large.number} {large.name}")
    lines += [_line(outcome) for outcome in found if outcome.status in FAILURES]
    return "\n".join(lines)


def _line(outcome: DamagedModelOutcome) -> str:
    return f"{outcome.number:5} {outcome.status:15}{outcome.name}: {outcome.reason[:300]}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=500, help="how many models")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--only", help="numbers of models, with commas between them")
    parser.add_argument("--json", action="store_true", help="print outcomes as JSON")
    arguments = parser.parse_args()
    only = [int(number) for number in arguments.only.split(",")] if arguments.only else None
    found = outcomes(arguments.seed, only or range(arguments.count), arguments.jobs)
    if arguments.json:
        json.dump([asdict(outcome) for outcome in found], sys.stdout, indent=1)
    else:
        print("\n".join(map(_line, found)) if only else summary(found))
    return 1 if any(outcome.status in FAILURES for outcome in found) else 0


if __name__ == "__main__":
    sys.exit(main())
