"""Checks schedules of random decisions for races, and those of whole models; prints the counts.

    python tests/tvm_ext/polyhedral/decision_checks.py --decisions 2000
    python tests/tvm_ext/polyhedral/decision_checks.py --models a.onnx b.onnx --usual-sizes

The decisions are those that a tuner draws from, of every template that takes one of the kernels of
``kernel_cases``, whose sizes are not round. Exit code 1 when there is a race.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# What several test folders use; they are no packages.
sys.path.insert(1, str(Path(__file__).parents[2] / "shared"))

from decision_cases import random_decisions
from kernel_cases import CASES
from lowering import kernels_of
from tvm import tirx

import tvm_ext
from tvm_ext.configs.errors import NotApplicable
from tvm_ext.errors import ModelError
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.passes import share_storage
from tvm_ext.polyhedral.check_schedules import check_schedule
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.backend import scheduling_of
from tvm_ext.tir_schedules.template import FixedDecisions

Counts = tuple[Counter[str], list[str]]


def checked_decisions(names: Sequence[str], draws: int, seed: int) -> Counts:
    """The counts of ``note`` for so many decisions of each kernel and template, and the races."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for name in names:
        for label, func in _schedules(name, draws, seed):
            note(label, func, counts, wrong)
    return counts, wrong


def note(label: str, func: tirx.PrimFunc, counts: Counter[str], wrong: list[str]) -> None:
    """Counts a schedule by what was found of it; a race goes to ``wrong`` as well."""
    found = check_schedule(func)
    counts["schedules"] += 1
    if found.races:
        counts["races"] += 1
        wrong.append(f"{label}: {found.races[0]}")
    elif found.checked_at:
        counts["checked at sizes"] += 1
        counts[f"checked at sizes: {found.not_proved[0][:100]}"] += 1
    elif found.not_proved:
        counts["not affine"] += 1
        counts[f"not affine: {found.not_proved[0][:100]}"] += 1
    else:
        counts["legal, a tile is moved back" if found.moved_back else "legal"] += 1


def _schedules(name: str, draws: int, seed: int) -> Iterator[tuple[str, tirx.PrimFunc]]:
    """Each different one of the decisions that are drawn."""
    machine = host_description().with_cores(2)
    for kernel, func in kernels_of(CASES[name].expression, *CASES[name].inputs).items():
        for template in scheduling_of(machine).templates:
            seen: set[str] = set()
            for number in range(draws):
                (values,) = random_decisions(template, func, machine, 1, seed + number)
                scheduled = apply_template(template, func, machine, FixedDecisions(values))
                if isinstance(scheduled, NotApplicable) or str(values) in seen:
                    if not values:
                        break
                    continue
                seen.add(str(values))
                yield f"{name}, {kernel}, {template.name}, {values}", scheduled.func


def _random_decisions(count: int, seed: int) -> Counts:
    """So many schedules, of kernels in a random order that comes again with other decisions."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    names = list(CASES)
    rng = random.Random(seed)
    while counts["schedules"] < count:
        name = rng.choice(names)
        for label, func in _schedules(name, 4, rng.randrange(1 << 30)):
            if counts["schedules"] < count:
                note(label, func, counts, wrong)
                if counts["schedules"] % 50 == 0:
                    print(dict(counts), flush=True)
    return counts, wrong


def _models(paths: Sequence[Path], usual_sizes: bool) -> Counts:
    """Every kernel of models as they are compiled, after the last pass that changes loops."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for path in paths:
        for name, func in _model_kernels(path, usual_sizes):
            note(f"{path.stem}, {name}", func, counts, wrong)
        print(f"{path.stem}: {dict(counts)}", flush=True)
    return counts, wrong


def _model_kernels(path: Path, usual_sizes: bool) -> list[tuple[str, tirx.PrimFunc]]:
    """The kernels of a model; those of its dynamic dimensions where usual sizes do not fit it."""
    shapes = _usual_shapes(path) if usual_sizes else None
    try:
        return _compiled_kernels(path, shapes)
    except ModelError as error:
        if shapes is None:
            raise
        print(f"{path.stem} keeps its dynamic dimensions: {str(error)[:200]}")
        return _compiled_kernels(path, None)


def _usual_shapes(path: Path) -> dict[str, list[int | str]] | None:
    """The shapes of a model's inputs with a usual number for each dynamic dimension."""
    model = tvm_ext.compile(path)
    nominal = model.report.nominal
    if nominal is None:
        return None
    return {
        spec.name: [
            nominal.sizes.get(size, 1) if isinstance(size, str) else size for size in spec.shape
        ]
        for spec in model.inputs
    }


def _compiled_kernels(path: Path, shapes: Any) -> list[tuple[str, tirx.PrimFunc]]:
    """The kernels that reach the pass which plans memory."""
    found: dict[str, tirx.PrimFunc] = {}
    plan = share_storage._share_storage

    def noted(mod, *options):
        # A program may be planned more than once: the last kernels of a name count.
        for variable, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                found[str(variable.name_hint)] = func
        return plan(mod, *options)

    share_storage._share_storage = noted
    try:
        tvm_ext.compile(path, input_shapes=shapes)
    finally:
        share_storage._share_storage = plan
    return list(found.items())


def main() -> int:
    """Prints the counts; the module's docstring has the exit codes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--decisions", type=int, default=2000, help="how many; %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", nargs="*", type=Path, help="these in place of decisions")
    parser.add_argument(
        "--usual-sizes", action="store_true", help="models with numbers for dynamic dimensions"
    )
    given = parser.parse_args()
    if given.models:
        counts, wrong = _models(given.models, given.usual_sizes)
    else:
        counts, wrong = _random_decisions(given.decisions, given.seed)
    print("\n".join([*wrong, *(f"{name}: {number}" for name, number in sorted(counts.items()))]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
