"""What all descriptions of machines have in common, whatever backend they belong to."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import tvm

from tvm_ext.configs.loader import ConfigModel


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

    @property
    def required_features(self) -> tuple[str, ...]:
        """CPU features that a machine needs to run a program built for this target."""
        return ()

    def tvm_target(self) -> tvm.target.Target:
        """The TVM target that builds code for this machine."""
        raise NotImplementedError

    def with_cores(self, cores: int) -> "MachineDescription":
        """The same machine with ``cores`` cores at work."""
        raise NotImplementedError

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
