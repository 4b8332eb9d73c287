"""What goes wrong with one kernel does not end the session."""

from collections.abc import Iterator
from contextlib import contextmanager

from tvm_ext.configs.errors import TvmExtError
from tvm_ext.tuning.interrupt import Interrupt
from tvm_ext.tuning.kernel_state import KernelState
from tvm_ext.tuning.progress import SessionProgress


class KernelGuard:
    """Skips kernels over which something fails, with a note.

    Parameters
    ----------
    progress : SessionProgress
        Gets the notes.
    interrupt : Interrupt
        After one, errors mean nothing.
    """

    def __init__(self, progress: SessionProgress, interrupt: Interrupt) -> None:
        self._progress = progress
        self._interrupt = interrupt

    @contextmanager
    def guarded(self, state: KernelState) -> Iterator[None]:
        """Only errors that a user can cause, TvmExtError, leave the block."""
        try:
            yield
        except TvmExtError:
            raise
        except Exception:  # noqa: BLE001
            # Interrupts in TVM's callbacks come back as errors.
            if not self._interrupt.came:
                state.end("skipped", "its search failed, a bug in tvm-ext")
                state.search = None
                self._progress.notes.append(
                    f"bug in tvm-ext: the search of {state.task.name} failed, which keeps its "
                    "default schedule; please report it"
                )
