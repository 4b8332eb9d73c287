"""The two tuners of ``tuning.py``, and the kernels that they are given."""

import tempfile
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kernel_models import Scale, kernel_models, select_kernels
from model_list import entries_of
from tvm.s_tir import meta_schedule as ms

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.passes.pipeline import build_pipeline
from tvm_ext.tir_schedules.block_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.template import NotMine
from tvm_ext.tune_model import ModelKernels, model_kernels
from tvm_ext.tuning.candidate import Candidate, candidate_of
from tvm_ext.tuning.database_files import read_database, trace_of
from tvm_ext.tuning.effort import load_effort
from tvm_ext.tuning.record_choice import best, standings
from tvm_ext.tuning.search.template_space import TemplateSpace
from tvm_ext.tuning.search.traces import trace_from_json
from tvm_ext.tuning.session import TuningSession
from tvm_ext.tuning.session_options import SessionOptions
from tvm_ext.tuning.task import KernelTask, kernel_task
from tvm_ext.tuning.trial_log import read_trials

# After how many trials ours and MetaSchedule's best are compared.
_OURS_AFTER = (1, 8, 32, 64)
_STOCK_AFTER = (32, 64)

# Trials between two trainings of MetaSchedule's cost model; with its own 64 there would be none.
_STOCK_BATCH = 16


@dataclass(frozen=True)
class KernelPair:
    """One kernel as either tuner gets it.

    Attributes
    ----------
    task, kernels
        As ``tvm_ext.tune`` extracts it.
    rival_task, rival_kernels
        The same nodes of the model without Winograd's algorithm, which MetaSchedule cannot choose.
    """

    name: str
    task: KernelTask
    kernels: ModelKernels
    rival_task: KernelTask
    rival_kernels: ModelKernels


def kernel_pairs(asked: Namespace) -> Iterator[KernelPair]:
    """The kernels that were asked for, by name and of models."""
    pipeline = build_pipeline("O3", ["WinogradConvolution"] if asked.same_algorithm else [])
    plain = build_pipeline("O3", ["WinogradConvolution"])
    with tempfile.TemporaryDirectory() as folder:
        known = kernel_models(Scale(large_bytes=1 << 26))
        for kernel in select_kernels(known, asked.kernels) if asked.kernels else ():
            path = Path(folder) / f"{kernel.name}.onnx"
            path.write_bytes(kernel.build().SerializeToString())
            ours = model_kernels(path, None, pipeline)
            yield next(_matched(kernel.name, ours, model_kernels(path, None, plain)))
        for entry in entries_of([], {}, [asked.models] if asked.models else []):
            ours = model_kernels(entry.path, entry.shapes, pipeline)
            theirs = model_kernels(entry.path, entry.shapes, plain)
            every = list(_matched(entry.name, ours, theirs))
            for one in every[: asked.per_model]:
                yield replace(one, name=f"{entry.name}: {one.rival_task.name}")


def _matched(name: str, ours: ModelKernels, theirs: ModelKernels) -> Iterator[KernelPair]:
    """Kernels in the order of what they cost without Winograd, with the one that does it here."""
    for rival in theirs.tasks:
        mine = [task for task in ours.tasks if set(task.origins) & set(rival.origins)]
        if mine:
            yield KernelPair(name, mine[0], ours, rival, theirs)


def tuned_by_us(
    pair: KernelPair, machine: CpuDescription, trials: int, seed: int
) -> dict[int, Candidate]:
    """What ``tvm-ext tune`` would leave after each number of trials, by that number.

    A session that ends after the first number, and goes on to the next.
    """
    task, kernels = pair.task, pair.kernels
    effort = load_effort("standard").model_copy(update={"patience": 10**6})
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for after in (n for n in _OURS_AFTER if n <= trials):
            session = TuningSession(
                kernels.model,
                [task],
                machine,
                Path(folder),
                kernels.finish,
                effort.cost_model,
                SessionOptions(effort, trials=after, seed=seed),
                kernels.modelled,
            )
            session.run()
            chosen = best(standings(read_trials(Path(folder)).trials))
            if chosen is None:
                raise RuntimeError(f"nothing was measured of {pair.name}")
            trace = trace_from_json(chosen.trial.trace, task.workload)
            found[after] = _made(candidate_of(task, trace, machine, kernels.finish))
    return found


def tuned_by_stock(
    pair: KernelPair, machine: CpuDescription, trials: int, seed: int
) -> dict[int, Candidate]:
    """The best of MetaSchedule's own measurements after each number of trials."""
    # Without our note of which parameters are constants: MetaSchedule does not know it.
    func = pair.rival_task.func
    if CONSTANTS_ATTRIBUTE in func.attrs:
        func = func.without_attr(CONSTANTS_ATTRIBUTE)
    plain = replace(kernel_task(pair.rival_task.name, func), hash=pair.rival_task.hash)
    with tempfile.TemporaryDirectory() as folder:
        ms.tune_tir(
            plain.workload,
            machine.tvm_target(),
            folder,
            max_trials_global=trials,
            num_trials_per_iter=_STOCK_BATCH,
            seed=seed + 1,
        )
        records = read_database(Path(folder)).records
    found = {}
    for after in (n for n in _STOCK_AFTER if n <= trials):
        timed = [record for record in records[:after] if record.seconds < 1e9]
        if timed:
            trace = trace_of(min(timed, key=lambda record: record.seconds), plain.workload)
            finish = pair.rival_kernels.finish
            found[after] = _made(candidate_of(plain, trace, machine, finish))
    return found


def own_default(pair: KernelPair, machine: CpuDescription, *, rival: bool) -> Candidate:
    """The kernel with our default schedule: what its candidates take turns with."""
    task = pair.rival_task if rival else pair.task
    kernels = pair.rival_kernels if rival else pair.kernels
    found = TemplateSpace(task, machine, kernels.finish).closed_form()
    if found is None:
        raise RuntimeError(f"{pair.name} has no default schedule")
    return found


def _made(found: Candidate | NotMine) -> Candidate:
    if isinstance(found, NotMine):
        raise RuntimeError(f"a schedule that was measured does not apply: {found.reason}")
    return found
