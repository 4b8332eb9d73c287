"""Runs the ONNX project's backend tests through tvm_ext.compile.

python tests/onnx_backend/run.py                      counts, and what failed by operator
python tests/onnx_backend/run.py --filter 'lstm|gru'  cases or operators that match
python tests/onnx_backend/run.py --json               one object a case, for other programs
"""

import argparse
import functools
import json
import os
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

# Kernels are tiny here: threads cost more than they bring.
os.environ.setdefault("TVM_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Cases are made with random numbers and odd ones: 0 / 0 in the making is no news.
warnings.simplefilter("ignore")
# The test folders are no packages: what they share has one of its own.
sys.path.insert(1, str(Path(__file__).parents[1] / "shared"))

from case_workers import Job, run_cases  # noqa: E402
from cases import OnnxBackendCase, all_cases  # noqa: E402
from run_case import PASSED, RANDOM, STATUSES, OnnxBackendOutcome, lost_case, run_case  # noqa: E402


def chosen(cases: Sequence[OnnxBackendCase], pattern: str, shard: str) -> list[OnnxBackendCase]:
    """Those whose name or operator matches, of these each of which the ``i/n`` th part is meant."""
    index, count = (int(part) for part in shard.split("/"))
    names = re.compile(pattern, re.IGNORECASE)
    found = [case for case in cases if names.search(case.name) or names.search(case.operator)]
    return found[index::count]


def summary(outcomes: Sequence[OnnxBackendOutcome]) -> str:
    """Counts of every status, then each operator with its failures."""
    counts = Counter(outcome.status for outcome in outcomes)
    lines = [f"{len(outcomes)} cases: " + ", ".join(f"{counts[s]} {s}" for s in STATUSES)]
    by_operator: dict[str, list[OnnxBackendOutcome]] = defaultdict(list)
    for outcome in outcomes:
        by_operator[outcome.operator].append(outcome)
    for operator, its in sorted(by_operator.items()):
        failed = sorted((o for o in its if o.status not in (PASSED, RANDOM)), key=lambda o: o.name)
        if failed:
            lines.append(f"{operator}: {len(its) - len(failed)} of {len(its)} pass")
            lines += [f"    {o.status:15}{o.name}: {o.reason[:200]}" for o in failed]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--filter", default="", help="regular expression for names and operators")
    parser.add_argument("--modules", default="", help="of ONNX's node cases, these alone: dft,relu")
    parser.add_argument("--shard", default="0/1", help="the i-th of n parts, as i/n")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--opt-level", default="O0", help="of the compilation; default %(default)s")
    parser.add_argument("--json", action="store_true", help="print outcomes as JSON")
    arguments = parser.parse_args()
    modules = [name for name in arguments.modules.split(",") if name]
    cases = chosen(all_cases(modules), arguments.filter, arguments.shard)
    run = functools.partial(run_case, opt_level=arguments.opt_level)
    outcomes = list(run_cases(Job(cases, run, lost_case), arguments.jobs))
    if arguments.json:
        json.dump([asdict(outcome) for outcome in outcomes], sys.stdout, indent=1)
    else:
        print(summary(outcomes))
    return 0 if all(outcome.status in (PASSED, RANDOM) for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
