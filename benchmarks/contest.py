"""Several programs on one model: prepared, checked against the reference, and timed in turn."""

import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from peers import REFERENCE, Job, Peer, PeerError, Program
from peers.peer import refusal
from results import OURS_NAME, CaseResult, Measured, relative_difference

from tvm_ext.hardware.timing import Timer, interleaved_seconds, timed

# A program that takes longer for one run is not worth the wait.
SLOWEST_SECONDS = 20.0


class Contest:
    """The programs that take ``job``, ours first.

    Parameters
    ----------
    ours : Program
        Our own; an error of its first run is raised.
    job : Job
        The model.
    peers : iterable of Peer
        The others. Why one does not take part goes into ``result.reasons``.
    tolerance : float
        Largest difference from the reference that counts as rounding.
    result : CaseResult
        Gets the times.
    """

    def __init__(
        self, ours: Program, job: Job, peers: Iterable[Peer], tolerance: float, result: CaseResult
    ) -> None:
        self._result = result
        self._tolerance = tolerance
        self._programs = {OURS_NAME: ours}
        self._wanted = self._reference_outputs(job)
        self._differences = {OURS_NAME: self._difference(ours.outputs())}
        for peer in peers:
            try:
                self._add(peer, job)
            except PeerError as error:
                result.reasons[peer.name] = str(error)

    def run(
        self, seconds: float, others: Mapping[str, Timer] | None = None
    ) -> dict[str, list[float]]:
        """Times all programs, ``seconds`` seconds each, and ``others`` in turn with them.

        Returns the samples in seconds, by the name of the program or of the other timer.
        """
        timers = {name: timed(program.run) for name, program in self._programs.items()}
        timers |= others or {}
        taken = interleaved_seconds(list(timers.values()), seconds * len(timers))
        samples = dict(zip(timers, taken, strict=True))
        for name, difference in self._differences.items():
            self._result.programs[name] = Measured.of(samples[name], difference, self._tolerance)
        return samples

    def _add(self, peer: Peer, job: Job) -> None:
        program = peer.prepare(job)
        begun = time.perf_counter()
        outputs = _run(program)
        elapsed = time.perf_counter() - begun
        if elapsed > SLOWEST_SECONDS:
            raise PeerError(
                f"one run takes {elapsed:.0f} s; expected at most {SLOWEST_SECONDS:.0f} s"
            )
        self._programs[peer.name] = program
        self._differences[peer.name] = self._difference(outputs)

    def _reference_outputs(self, job: Job) -> Sequence[np.ndarray] | None:
        try:
            return _run(REFERENCE.prepare(job))
        except PeerError:
            return None

    def _difference(self, outputs: Sequence[np.ndarray]) -> float | None:
        return None if self._wanted is None else relative_difference(outputs, self._wanted)


def _run(program: Program) -> Sequence[np.ndarray]:
    try:
        return program.outputs()
    except Exception as error:
        raise refusal("fails to run the model", error) from error
