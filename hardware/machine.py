"""What all descriptions of machines have in common, whatever backend they belong to.

A description is read-only, and the content of a file in configs/targets, a preset or a user's own,
or what is found out about this machine (``tvm_ext.hardware.cpu.host``). Units are part of each
name: ``_bytes``, ``_bits``, ``_ghz``, ``_gbs`` (1e9 bytes a second), ``_us`` (microseconds). Those
of our machines are in ``description`` of the folder of each.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import tvm

from tvm_ext.configs.errors import TargetError
from tvm_ext.configs.loader import ConfigModel

MODEL_PRECISION = "model"
"""Products in the types that a model has them in."""

AUTOMATIC_PRECISION = "auto"
"""Products in the narrowest types that keep an error within a limit."""

if TYPE_CHECKING:
    from typing_extensions import Self


class MachineDescription(ConfigModel):
    """A machine in numbers, the content of a file in configs/targets or of a user's own.

    A backend derives its own description from this, or from another backend's: what is written for
    a kind of machine holds for those derived from it as well.
    """

    kind: str
    name: str
    summary: str

    if TYPE_CHECKING:
        # A field of some machines, a property of others.
        @property
        def kernel_overhead_us(self) -> float:
            """Time to call one kernel that does nothing."""
            ...

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def required_features(self) -> tuple[str, ...]:
        """CPU features that a program built for this target needs beyond the baseline of code."""
        return ()

    def tvm_target(self) -> tvm.target.Target:
        """The TVM target that builds code for this machine."""
        raise NotImplementedError

    def with_cores(self, cores: int) -> "MachineDescription":
        """The same machine with ``cores`` cores at work."""
        raise NotImplementedError

    def with_count(self, field: str, count: int) -> "Self":
        """The same machine with another number of cores, which ``field`` counts."""
        if count < 1:
            raise TargetError(f"'{self.name}' with {count} cores was asked for; expected 1 or more")
        return self.model_copy(update={field: count})

    def with_threads(self, threads: int) -> "MachineDescription":
        """The same machine for programs of so many threads. Raises TargetError for most."""
        raise TargetError(
            f"threads were given, and target '{self.name}' is not a CPU; expected them only for a "
            "CPU: leave the threads out"
        )

    def with_tf32(self) -> "MachineDescription":
        """The same machine with products of float32 in tf32. Raises TargetError for most."""
        raise TargetError(
            f"tf32 was asked for, and target '{self.name}' is not a GPU; expected a GPU whose "
            "tensor cores know tf32: leave it out"
        )

    def with_precision(self, precision: str) -> "MachineDescription":
        """The same machine with products of float32, or weights, in ``precision``; "model": as
        models have them.

        Raises TargetError where it has no instruction for these.
        """
        if precision == MODEL_PRECISION:
            return self
        raise TargetError(
            f"precision '{precision}' was asked for and target '{self.name}' has only "
            f"'{MODEL_PRECISION}'; expected that precision: leave the option out"
        )

    def vector_lanes(self, dtype: str) -> int:
        """Elements of ``dtype`` that one load or one instruction takes."""
        raise NotImplementedError

    def peak_flops(self, dtype: str) -> float:
        """Operations a second (a multiply-add is two) of the whole machine."""
        raise NotImplementedError

    def fastest_seconds(self, seconds_on: "Callable[[MachineDescription], float]") -> float:
        """The time of a kernel that may run on a part of the machine, given its time on a part."""
        return seconds_on(self)

    def bandwidth(self, working_set_bytes: float) -> float:
        """Copy bandwidth in bytes a second for data that is reused at this size."""
        raise NotImplementedError
