"""What templates share when they offer decisions: options that differ, threads, numbered blocks."""

from collections.abc import Callable, Hashable, Iterable, Iterator

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.decisions import Decisions

# Registers' worth of elements that one loop over vectors may have in its body.
VECTORS = (1, 2, 4, 8)


def distinct(
    options: Iterable[int], default: int, outcome: Callable[[int], Hashable]
) -> Iterator[int]:
    """Those of ``options`` that come to something else than the others; the default is kept.

    Found out only when they are looked at, which the closed form does not.
    """
    known = {outcome(default)}
    for option in options:
        if outcome(option) not in known:
            known.add(outcome(option))
            yield option


def pick_threads(
    decisions: Decisions, machine: CpuDescription, iterations: Callable[[], int], default: bool
) -> bool:
    """Whether loops run on threads: a choice where they have more than one iteration to share."""
    if machine.cores < 2:
        return False
    options = (option for option in (0, 1) if iterations() > 1)
    return bool(decisions.pick("threads", options, int(default)))
