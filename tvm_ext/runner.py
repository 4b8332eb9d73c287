"""Independent runs side by side, each on a few threads: more of them a second than one after the
other.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from tvm_ext.errors import InputError


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
