"""Wall time of the phases of a compilation, and the phase's name for what TVM raises in it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tvm_ext.configs.progress import tell
from tvm_ext.errors import REPORT_IT, BuildError, TvmExtError
from tvm_ext.open_dimensions import InputShapes, freezing_hint
from tvm_ext.report.records import PhaseRecord


class Phases:
    """Wall time of the phases, in order; an error that is not ours gets the name of its phase.

    Attributes
    ----------
    model : str
        The model's name, once it is known.
    inputs : InputShapes
        The sizes of its inputs, once they are known.
    """

    def __init__(self) -> None:
        self.records: list[PhaseRecord] = []
        self.model = "the model"
        self.inputs: InputShapes = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Times the block, which may be one of several of its phase, one after the other.

        Raises BuildError for an error in it that no step expects.
        """
        begun = time.perf_counter()
        tell(name)
        try:
            yield
        except TvmExtError:
            raise
        except MemoryError as error:
            raise BuildError(
                f"there is no memory left in phase '{name}' of {self.model}; expected more: give "
                "smaller input shapes, or end other programs"
            ) from error
        except Exception as error:
            raise BuildError(
                f"bug in tvm-ext: phase '{name}' failed on {self.model}; expected a program: "
                f"{self._advice()}try --opt-level 0, and {REPORT_IT}",
                defect=True,
            ) from error
        seconds = time.perf_counter() - begun
        if self.records and self.records[-1].name == name:
            seconds += self.records.pop().seconds
        self.records.append(PhaseRecord(name, seconds))

    def _advice(self) -> str:
        hint = freezing_hint(self.inputs)
        return f"{hint}, or " if hint else ""
