"""Independent runs side by side, each on a few threads: more of them a second than one after the
other. So are the micro-batches of one run.
"""

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np

from tvm_ext.errors import InputError
from tvm_ext.hardware.cpu.threads import running_on
from tvm_ext.program_call import ProgramCall, memory_tensor
from tvm_ext.report.records import MicroBatchRecord
from tvm_ext.tensor_spec import TensorSpec, shapes_of, symbolic_names


class Runner:
    """Runs of one model on several streams, with a queue ahead of them.

    Made by ``CompiledModel.runner``. A stream is a thread of this process with a program's state of
    its own; Python's lock is free while the model computes.

    Parameters
    ----------
    run : callable
        ``CompiledModel.run``.
    streams : int
        How many runs go on at the same time.
    threads : int
        Threads of each run, the stream's own counted.
    """

    def __init__(self, run: Callable[..., dict[str, Any]], streams: int, threads: int) -> None:
        self._run = run
        self.streams = streams
        self.threads = threads
        self._pool = ThreadPoolExecutor(streams, thread_name_prefix="tvm_ext-stream")

    def submit(self, inputs: Mapping[str, Any]) -> "Future[dict[str, Any]]":
        """Queues a run, and returns at once.

        Parameters
        ----------
        inputs : mapping of input name to array
            As for ``CompiledModel.run``. They are read when a stream takes the run up: leave them
            as they are until the result is there.

        Returns
        -------
        Future
            ``result()`` waits for the outputs, or raises what ``CompiledModel.run`` does.

        Raises
        ------
        InputError
            The runner is closed.
        """
        try:
            return self._pool.submit(self._run, inputs, threads=self.threads)
        except RuntimeError as error:
            raise InputError(
                "the runner is closed; expected an open one: make another with model.runner()"
            ) from error

    def close(self) -> None:
        """Waits for all runs, and ends the streams; later calls do nothing."""
        self._pool.shutdown()

    def __enter__(self) -> "Runner":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


# Micro-batches: threads that each take a few items of a batch through the whole program wait for
# nobody, and find their own arrays in their own cache.


Share: TypeAlias = tuple[slice, ...]
"""The micro-batches of one thread."""

# Of the threads' time, the part in which all of them have items, at least.
_LEAST_BALANCE = 0.9


def shares_of_batch(size: int, items: int, threads: int) -> tuple[Share, ...] | None:
    """``size`` items shared out among threads, in micro-batches of about ``items``.

    A thread may have half a micro-batch, and a single one has to have two. None for too few items,
    and for a number that leaves some threads without work at the end.
    """
    few, more = divmod(size, threads)
    most = few + (more > 0)
    is_balanced = size >= _LEAST_BALANCE * most * threads
    if 2 * few < items or size < 2 or not is_balanced or (threads == 1 and size < 2 * items):
        return None
    shares, first = [], 0
    for thread in range(threads):
        own = few + (thread < more)
        parts = -(-own // items)
        ends = [first + own * part // parts for part in range(parts + 1)]
        shares.append(tuple(slice(low, high) for low, high in itertools.pairwise(ends)))
        first += own
    return tuple(shares)


class MicroBatches:
    """Runs of one program whose batch is cut into micro-batches.

    Parameters
    ----------
    record : MicroBatchRecord
        How it is cut.
    inputs, outputs : sequence of TensorSpec
        Those of the program.
    out_params : sequence of int
        Places of the outputs that the program writes to memory that it is given.
    call : callable
        The program as a call of the calling thread.
    """

    def __init__(
        self,
        record: MicroBatchRecord,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        out_params: Sequence[int],
        call: Callable[[], ProgramCall],
    ) -> None:
        self._record = record
        self._batched = [spec.shape[:1] == (record.dimension,) for spec in inputs]
        self._names = [s.name for s, own in zip(inputs, self._batched, strict=True) if own]
        self._outputs = [spec.name for spec in outputs]
        self._out_params = list(out_params)
        self._call = call
        # What was asked last, and the answer.
        self._decided: tuple[tuple[int, list[Any]], tuple[Share, ...] | None] | None = None
        # The process and the number of the threads.
        self._pool: tuple[int, int, ThreadPoolExecutor] | None = None

    @staticmethod
    def are_known(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> bool:
        """Whether the sizes of the outputs are known ahead of a run."""
        known, wanted = (set(symbolic_names(shapes_of(specs))) for specs in (inputs, outputs))
        return wanted <= known

    def shares(self, inputs: Mapping[str, Any], threads: int) -> tuple[Share, ...] | None:
        """How a run of these inputs is cut; None where it is not. They may be of any kind."""
        first = getattr(inputs.get(self._names[0]), "shape", None)
        if not first or first[0] < 2:
            return None
        # To decide takes a third of the time of a small run, and most are like the last one.
        asked = (threads, [getattr(inputs.get(name), "shape", ()) for name in self._names])
        last = self._decided
        if last is None or last[0] != asked:
            last = self._decided = asked, self._shares(*asked)
        return last[1]

    def _shares(self, threads: int, shapes: Sequence[Any]) -> tuple[Share, ...] | None:
        size = shapes[0][0]
        if any(tuple(shape)[:1] != (size,) for shape in shapes):
            return None
        elements = sum(math.prod(shape[1:]) for shape in shapes)
        return shares_of_batch(size, self._record.items_for(elements), threads)

    def run(
        self,
        shares: Sequence[Share],
        arrays: Sequence[np.ndarray],
        out: Mapping[str, np.ndarray],
    ) -> None:
        """Runs on checked inputs, and writes to an array for each output."""
        first, *others = shares
        pool = self._threads(len(others)) if others else None
        waiting = [pool.submit(self._run, share, arrays, out) for share in others if pool]
        try:
            self._run(first, arrays, out)
        finally:
            # They write to the caller's memory.
            failed = [future.exception() for future in waiting]
        for error in filter(None, failed):
            raise error

    def _threads(self, count: int) -> ThreadPoolExecutor:
        """Threads of this process: a copy of it, as ``fork`` makes, has none of them."""
        known = self._pool
        if known is None or known[0] != os.getpid() or known[1] < count:
            pool = ThreadPoolExecutor(count, thread_name_prefix="tvm_ext-batch")
            known = self._pool = os.getpid(), count, pool
        return known[2]

    def _run(
        self, share: Share, arrays: Sequence[np.ndarray], out: Mapping[str, np.ndarray]
    ) -> None:
        with running_on(1):
            for part in share:
                self._part(part, arrays, out)

    def _part(
        self, part: slice, arrays: Sequence[np.ndarray], out: Mapping[str, np.ndarray]
    ) -> None:
        call = self._call()
        pairs = zip(arrays, self._batched, strict=True)
        own = [array[part] if batched else array for array, batched in pairs]
        places = [out[name][part] for name in self._outputs]
        written = [memory_tensor(places[place]) for place in self._out_params]
        results = call.write(call.filled(own), written)
        for place, (target, result) in enumerate(zip(places, results, strict=True)):
            if place not in self._out_params:
                np.copyto(target, result)
