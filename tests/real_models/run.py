"""Exports models, compiles them, compares them with ONNX Runtime, writes docs/reference/models.md.

python tests/real_models/run.py CACHE                        what was not tried yet, then the page
python tests/real_models/run.py CACHE --only 'swin.*dynamic' cases or families that match
python tests/real_models/run.py CACHE --again refused,wrong  also what ended so before
python tests/real_models/run.py CACHE --page docs/reference/models.md  write the page

Exported files, and what became of them, stay in the folder CACHE: a second run only compiles.
"""

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

warnings.simplefilter("ignore")
# The test folders are no packages: what they share has one of its own.
sys.path.insert(1, str(Path(__file__).parents[1] / "shared"))

from case_workers import Job, run_cases  # noqa: E402
from catalogue import all_cases  # noqa: E402
from catalogue.entry import ExportedEntry  # noqa: E402
from compare import (  # noqa: E402
    ExportedFile,
    compare_file,
    lost_file,
    lost_reference,
    run_reference,
)
from export import chosen  # noqa: E402
from outcome import MATCH, NOT_EXPORTED, UNJUDGED, ModelOutcome  # noqa: E402
from page import models_page  # noqa: E402

SECONDS, GIBIBYTES = 600.0, 12


def exported_files(cases: Sequence[ExportedEntry]) -> Iterator[ExportedFile]:
    """Every file that was exported."""
    for case in cases:
        for path in sorted(case.folder.glob("*.onnx")):
            if path.with_suffix(".inputs").exists():
                yield ExportedFile(case, path)


def compare(files: Sequence[ExportedFile], processes: int) -> Iterator[ModelOutcome]:
    """Runs the reference where that is not known yet, then ours; each in its own process."""
    unknown = [file for file in files if not file.expected.exists()]
    references = Job(unknown, run_reference, lost_reference, SECONDS, GIBIBYTES, 1)
    for _ in run_cases(references, processes):
        pass
    comparisons = Job(files, compare_file, lost_file, SECONDS, GIBIBYTES, 1)
    yield from run_cases(comparisons, processes)


def all_outcomes(cases: Sequence[ExportedEntry]) -> list[ModelOutcome]:
    """Of all that was tried so far, in the catalogue's order."""
    found = []
    for case in cases:
        found += [ModelOutcome.read(path) for path in sorted(case.folder.glob("*.outcome"))]
        error = json.loads(case.mark.read_text())["error"] if case.mark.exists() else ""
        if error:
            outcome = ExportedFile(case, case.folder / "model.onnx").outcome(NOT_EXPORTED, error)
            found.append(outcome)
    return found


def untried(cases: Sequence[ExportedEntry]) -> list[ExportedEntry]:
    """Those that were not exported yet, or whose files were not all compared."""
    return [
        case
        for case in cases
        if not case.mark.exists()
        or any(not path.with_suffix(".outcome").exists() for path in case.folder.glob("*.onnx"))
    ]


def _line(outcome: ModelOutcome) -> str:
    what = f"{outcome.name} {outcome.exporter} {outcome.form}: {outcome.status}"
    if outcome.status != MATCH:
        return f"{what}: {outcome.reason}"
    ratio = f", ratio {outcome.ratio:.2f}" if outcome.ratio else ""
    return f"{what}, difference {outcome.difference:.1e}, {outcome.seconds} s{ratio}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cache", type=Path, help="folder of exported files")
    parser.add_argument("--only", default="", help="regular expression for names and families")
    parser.add_argument("--again", default="", help="statuses to try again, with commas, or all")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--opt-level", default="O3", help="of the compilation; default %(default)s")
    parser.add_argument("--export-with", default=sys.executable, help="Python that exports")
    parser.add_argument("--no-export", action="store_true", help="take what the cache holds")
    parser.add_argument("--no-times", action="store_true", help="do not measure ratios")
    parser.add_argument("--page", type=Path, help="where to write the table")
    given = parser.parse_args()
    cases = all_cases(given.cache.resolve())
    if not given.no_export:
        script = Path(__file__).parent / "export.py"
        subprocess.run([given.export_with, script, given.cache, "--only", given.only], check=True)
    files = [
        replace(file, opt_level=given.opt_level, is_timed=not given.no_times)
        for file in exported_files(chosen(cases, given.only))
        if not file.found.exists()
        or given.again == "all"
        or ModelOutcome.read(file.found).status in given.again.split(",")
    ]
    outcomes = []
    for outcome in compare(files, given.jobs):
        outcomes.append(outcome)
        print(_line(outcome), flush=True)
    if given.page:
        given.page.write_text(models_page(all_outcomes(cases), len(untried(cases))))
    return 1 if any(o.status not in (MATCH, *UNJUDGED) for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
