"""Exports the models of the catalogue into a folder, each in a process of its own.

Runs in the environment of requirements.txt, which needs nothing of tvm_ext; ``run.py`` starts it.

python tests/real_models/export.py CACHE                  what is not there yet
python tests/real_models/export.py CACHE --only 'swin'    cases whose name matches
"""

import argparse
import json
import os
import pickle
import re
import shutil
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

# A process that is forked later must find no threads of libraries.
os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "KERAS_BACKEND": "torch"}
os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
warnings.simplefilter("ignore")
sys.path.insert(1, str(Path(__file__).parents[1] / "shared"))

from case_workers import Job, run_cases  # noqa: E402
from catalogue import all_cases  # noqa: E402
from catalogue.entry import ExportedEntry  # noqa: E402

SECONDS, GIBIBYTES = 300.0, 24


def export_case(case: ExportedEntry) -> str:
    """Writes the files of a case, its inputs beside them; returns why not, empty if it did."""
    from drawing import declared_inputs, draw_inputs, seed_everything
    from exporters import EXPORTERS

    shutil.rmtree(case.folder, ignore_errors=True)
    case.folder.mkdir(parents=True)
    seed_everything()
    try:
        EXPORTERS[case.exporter](case)
        for path in sorted(case.folder.glob("*.onnx")):
            inputs = declared_inputs(path, case.entry)
            runs = [draw_inputs(inputs, sizes, seed) for seed, sizes in enumerate(case.sizes)]
            path.with_suffix(".inputs").write_bytes(pickle.dumps(runs))
    except Exception as error:  # noqa: BLE001 - exporters raise anything
        if "--debug" in sys.argv:
            (case.folder / "traceback.txt").write_text(traceback.format_exc())
        return note(case, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return note(case, "")


def note(case: ExportedEntry, error: str) -> str:
    """Leaves a mark that this case was tried."""
    if error:
        for path in case.folder.glob("*.onnx*"):
            path.unlink()
    case.folder.mkdir(parents=True, exist_ok=True)
    case.mark.write_text(json.dumps({"error": error}))
    return f"{case.name}: {error or 'exported'}"


def chosen(cases: Iterable[ExportedEntry], pattern: str) -> list[ExportedEntry]:
    """Those whose name or family matches; files of dynamic sizes, which show most, come first."""
    names = re.compile(pattern, re.IGNORECASE)
    found = [case for case in cases if names.search(case.name) or names.search(case.entry.family)]
    return sorted(found, key=lambda case: case.form)


def _import_libraries() -> None:
    """Once, for all processes to come."""
    for name in ("torchvision_operators", "onnxscript", "timm", "transformers"):
        try:
            __import__(name)
        except ImportError as error:
            print(f"{name} cannot be imported: {error}", file=sys.stderr)


def _lost(case: ExportedEntry, status: str, reason: str) -> str:
    return note(case, f"{status}: {reason}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cache", type=Path, help="folder that gets the files")
    parser.add_argument("--only", default="", help="regular expression for names and families")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--again", action="store_true", help="also what is there or failed")
    parser.add_argument("--debug", action="store_true", help="keep tracebacks in the cache")
    given = parser.parse_args(arguments)
    cases = chosen(all_cases(given.cache.resolve()), given.only)
    missing = [case for case in cases if given.again or not case.mark.exists()]
    if not missing:
        return 0
    _import_libraries()
    job = Job(missing, export_case, _lost, SECONDS, GIBIBYTES, cases_per_process=1)
    for line in run_cases(job, given.jobs):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
