"""Times of the wavelets of a stream at one point of its way, as an array of cycles.

The recurrences are those of max-plus algebra (F. Baccelli et al., "Synchronization and linearity",
Wiley 1992, chapter 1): a server that takes one wavelet a cycle starts the i-th at
max(arrival[i], start[i - 1] + 1), so start[i] - i is a running maximum of arrival[i] - i.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

Train: TypeAlias = np.ndarray
"""Shape (words,), int64: when each wavelet is there, growing by 1 or more a wavelet."""


def one_a_cycle(arrivals: np.ndarray, earliest: int = 0) -> Train:
    """Starts of a server that does ``arrivals``, in order and not before ``earliest``."""
    count = np.arange(len(arrivals))
    slack = np.maximum.accumulate(arrivals - count)
    return np.maximum(slack, earliest) + count


def merged(arrivals: Sequence[Train], earliest: int) -> list[Train]:
    """Starts of a server that several trains share: whatever comes first, and of wavelets that
    come in the same cycle the one of the earlier train in the list; none before ``earliest``.
    """
    together = np.concatenate(arrivals)
    order = np.argsort(together, kind="stable")
    starts = np.empty_like(together)
    starts[order] = one_a_cycle(together[order], earliest)
    ends = np.cumsum([len(train) for train in arrivals])[:-1]
    return np.split(starts, ends)


def first_change(old: Train | None, new: Train) -> int | None:
    """The earliest time that differs; None if nothing does. One may have more wavelets."""
    if old is None:
        return int(new[0]) if len(new) else None
    common = min(len(old), len(new))
    different = np.flatnonzero(old[:common] != new[:common])
    if len(different):
        index = different[0]
        return int(min(old[index], new[index]))
    longer = old if len(old) > common else new
    return int(longer[common]) if len(longer) > common else None


def let_in(arrivals: Train, taken_from: int | None, room: int) -> Train:
    """Arrivals at a queue with ``room`` wavelets, which are taken one a cycle from ``taken_from``.

    Without that time, only those that the queue has room for come in.
    """
    if taken_from is None:
        return arrivals[:room]
    late = arrivals[room:]
    taken = np.arange(taken_from, taken_from + len(late))
    return np.concatenate([arrivals[:room], np.maximum(late, taken)])
