"""What a wafer-scale mesh is: thousands of processing elements, each with a memory and a router.

A processing element (PE) computes on its own SRAM only. Its router has five full-duplex links, to
the north, east, south, west and, over the ramp, to the PE itself; each carries one wavelet (a word
of 32 bits with the number of a colour, a static route) a cycle and a direction. All times are in
cycles; ``seconds`` and ``cycles`` convert at the border, with the description's clock, since
published figures of one machine are converted with different clocks.

Sources of the fields: M. Jacquelin, M. Araya-Polo, J. Meng, "Scalable distributed high-order
stencil computations", SC22, sections IV.A and V.C (PEs, links, power); P. Luczynski et al.,
"Near-optimal wafer-scale reduce", HPDC 2024, arXiv 2404.15888 (routers, ramps, colours);
C. He et al., "WaferLLM: large language model inference at wafer scale", OSDI 2025, section 3
(the PLMR model: hops, relays, routes). The numbers' own sources stand in the files of
configs/targets.
"""

import hashlib
import re
from typing import Annotated, Literal

import tvm
from pydantic import Field, model_validator

from tvm_ext.configs.errors import TargetError, TvmExtError
from tvm_ext.configs.loader import Count, Positive
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.targets import presets_of

Amount = Annotated[int, Field(ge=0)]

# What the routers move, whatever the element type: 32 bits.
_WAVELET_BYTES = 4


class WaferDescription(MachineDescription):
    """A rectangular mesh of equal processing elements; the module's docstring has its parts."""

    kind: Literal["wafer"]
    name: str
    summary: str
    fabric_rows: Count
    """Rows of PEs of the whole fabric."""
    fabric_columns: Count
    rows: Count
    """Rows of the largest rectangle a program may use; the rest moves data from and to the host."""
    columns: Count
    clock_mhz: Positive
    sram_bytes: Count
    """Memory of one PE, for code and data."""
    reserved_bytes: Amount
    """The part of it that code and stack take."""
    banks: Count
    """Memory banks of one PE."""
    bank_bytes: Count
    cycles_per_element: dict[str, Positive]
    """Cycles that a long vector instruction takes for each element, by dtype, float32 among them,
    with the operands in different banks.
    """
    conflict_factor: Annotated[float, Field(ge=1)]
    """How many times as long it takes with both operands in the same bank."""
    issue_cycles: Amount
    """Start of one vector instruction."""
    loop_cycles: Amount
    """Loop and descriptor updates around one vector instruction in plain code."""
    scalar_cycles: Count
    """One operation of scalar code, such as a step of an exponential function."""
    load_bytes_per_cycle: Count
    """What a PE reads from its memory at most."""
    store_bytes_per_cycle: Count
    link_bytes_per_cycle: Count
    """One link, in each direction."""
    ramp_bytes_per_cycle: Count
    """The link between a PE and its router, in each direction."""
    hop_cycles: Count
    """From a router to the next."""
    ramp_cycles: Count
    """Between a PE and its router, one way: T_R of Luczynski et al."""
    relay_cycles: Count
    """What a message loses at a PE that passes it on in software: beta of WaferLLM's PLMR model."""
    transfer_cycles: Amount
    """Software around one message of a program in steps: to start it, and to notice its end."""
    colours: Count
    """Routes that a router tells apart."""
    reserved_colours: Annotated[tuple[Amount, ...], Field(strict=False)] = ()
    """Those that a program may not use."""
    switch_positions: Count
    """Configurations of one colour that a router can step through."""
    launch_cycles: Amount
    """Time from the start of a program to its end when there is next to nothing to do."""
    word_bytes: Count
    """What one wavelet carries."""
    io_words_per_cycle: Positive
    """What one channel of the host link carries to the mesh."""
    io_return_words_per_cycle: Positive
    """What it carries back."""
    idle_watts: Positive
    active_watts: Positive

    @model_validator(mode="after")
    def _check(self) -> "WaferDescription":
        self._check_rectangle()
        self._check_memory()
        self._check_colours()
        if "float32" not in self.cycles_per_element:
            raise ValueError("cycles_per_element has no float32; add it: other types follow it")
        for dtype in self.cycles_per_element:
            _check_dtype(dtype)
        if self.word_bytes != _WAVELET_BYTES:
            raise ValueError(
                f"word_bytes is {self.word_bytes}; expected {_WAVELET_BYTES}: a wavelet has 32 bits"
            )
        for name in ("link_bytes_per_cycle", "ramp_bytes_per_cycle"):
            if getattr(self, name) != self.word_bytes:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; expected {self.word_bytes}: one wavelet a "
                    "cycle is what the forms of communication are written for"
                )
        if self.active_watts < self.idle_watts:
            raise ValueError(
                f"active_watts {self.active_watts} is below idle_watts {self.idle_watts}; "
                "expected at least it"
            )
        return self

    def _check_rectangle(self) -> None:
        if self.rows > self.fabric_rows or self.columns > self.fabric_columns:
            raise ValueError(
                f"the rectangle of {self.rows}x{self.columns} PEs is larger than the fabric of "
                f"{self.fabric_rows}x{self.fabric_columns}; expected one inside it"
            )

    def _check_memory(self) -> None:
        if self.banks * self.bank_bytes != self.sram_bytes:
            raise ValueError(
                f"{self.banks} banks of {self.bank_bytes} bytes are not the {self.sram_bytes} of "
                "sram_bytes; expected banks * bank_bytes to be it"
            )
        if self.reserved_bytes >= self.sram_bytes:
            raise ValueError(
                f"reserved_bytes is {self.reserved_bytes} of {self.sram_bytes} bytes; expected "
                "room for data"
            )

    def _check_colours(self) -> None:
        outside = [colour for colour in self.reserved_colours if colour >= self.colours]
        if outside:
            raise ValueError(
                f"reserved_colours has {outside[0]}; expected colours from 0 to {self.colours - 1}"
            )
        if len(set(self.reserved_colours)) != len(self.reserved_colours):
            raise ValueError("reserved_colours names a colour twice; expected each once")
        if not self.usable_colours:
            raise ValueError("reserved_colours holds all colours; expected some for programs")

    @property
    def device(self) -> str:
        """The name and a digest of all numbers, "wse2-0a1b2c3d": what tuning records belong to.

        Another clock, rectangle or cost per element is another device; another summary is not.
        """
        # With the former name of the kind: a new one would disown all earlier records.
        numbers = self.model_copy(update={"kind": "mesh"}).model_dump_json(exclude={"summary"})
        return f"{self.name}-{hashlib.sha256(numbers.encode()).hexdigest()[:8]}"

    @property
    def processing_elements(self) -> int:
        """PEs of the rectangle."""
        return self.rows * self.columns

    @property
    def usable_bytes(self) -> int:
        """Bytes of one PE that are left for data."""
        return self.sram_bytes - self.reserved_bytes

    @property
    def usable_colours(self) -> int:
        """How many colours a program may use."""
        return self.colours - len(self.reserved_colours)

    @property
    def kernel_overhead_us(self) -> float:
        """Time to start a kernel that does nothing."""
        return self.seconds(self.launch_cycles) * 1e6

    def tvm_target(self) -> tvm.target.Target:
        """The TVM target of scheduled modules: LLVM's baseline, so that they run here as well.

        Its attribute ``device`` is the mesh's. It names no triple, which would tie tuning records
        to the machine that looked for them: LLVM takes this machine's own.
        """
        config = {"kind": "llvm", "mcpu": "generic", "num-cores": 1, "device": self.device}
        return tvm.target.Target(config)

    def with_cores(self, cores: int) -> "WaferDescription":
        """Raises TargetError: a mesh has rows and columns."""
        raise TargetError(
            f"'{self.name}' with {cores} cores was asked for, and it is a mesh; expected rows and "
            "columns: use with_grid"
        )

    def with_grid(self, rows: int, columns: int) -> "WaferDescription":
        """The same mesh with a rectangle of ``rows`` x ``columns`` PEs for programs.

        Raises TargetError for one that is empty or larger than this one's.
        """
        if not (1 <= rows <= self.rows and 1 <= columns <= self.columns):
            raise TargetError(
                f"'{self.name}' with {rows}x{columns} PEs was asked for; expected 1x1 to "
                f"{self.rows}x{self.columns}"
            )
        return self.model_copy(update={"rows": rows, "columns": columns})

    def element_cycles(self, dtype: str) -> float:
        """Cycles for each element of a long vector instruction on ``dtype``.

        A type without arithmetic of its own runs at float32's rate, since it is widened first; a
        64-bit type takes twice as long.
        """
        if dtype in self.cycles_per_element:
            return self.cycles_per_element[dtype]
        wide = tvm.DataType(dtype).bits > 32
        return self.cycles_per_element["float32"] * (2 if wide else 1)

    def vector_lanes(self, dtype: str) -> int:
        """Elements of ``dtype`` that one PE works on in a cycle, at least 1."""
        return max(1, round(1 / self.element_cycles(dtype)))

    def peak_flops(self, dtype: str) -> float:
        """Operations a second (a multiply-add is two) over all PEs of the rectangle."""
        return 2 / self.element_cycles(dtype) * self.clock_mhz * 1e6 * self.processing_elements

    def bandwidth(self, working_set_bytes: float) -> float:
        """Bytes a second, read and written together, for data that is reused at this size.

        All memories of the rectangle at full speed; one channel of the host link for more than
        they hold.
        """
        if working_set_bytes <= self.usable_bytes * self.processing_elements:
            rate = self.load_bytes_per_cycle + self.store_bytes_per_cycle
            return rate * self.clock_mhz * 1e6 * self.processing_elements
        return self.io_words_per_cycle * self.word_bytes * self.clock_mhz * 1e6

    def seconds(self, cycles: float) -> float:
        """Time in seconds of ``cycles`` cycles."""
        return cycles / (self.clock_mhz * 1e6)

    def cycles(self, seconds: float) -> float:
        """Cycles in ``seconds`` seconds."""
        return seconds * self.clock_mhz * 1e6


def _check_dtype(dtype: str) -> None:
    try:
        tvm.DataType(dtype)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"cycles_per_element has '{dtype}', which is no type; expected such as 'float16'"
        ) from error


# What ``WaferDescription.device`` looks like.
_DEVICE = re.compile(r".*-[0-9a-f]{8}")


def mesh_of_tvm_target(target: tvm.target.Target) -> WaferDescription | None:
    """The preset that ``WaferDescription.tvm_target`` made a target of; None for a CPU's.

    Raises TargetError for a device that is no preset's.
    """
    device = str(target.attrs.get("device", ""))
    if not _DEVICE.fullmatch(device):
        return None
    for machine in presets_of(WaferDescription):
        if machine.device == device:
            return machine
    raise TargetError(
        f"device '{device}' of the TVM target is no preset's mesh; expected one of "
        "those: give the mesh's name or .toml file instead"
    )


class WaferLimitError(TvmExtError):
    """A mapping asks a mesh for more than it has, or for what no mesh has."""


# Hard limits of a mesh: what does not fit cannot run, at whatever cost.


def check_limits(
    mesh: WaferDescription, rows: int, columns: int, bytes_per_pe: float, colours: int
) -> None:
    """Raises WaferLimitError, which names the limit, unless a mapping fits.

    Parameters
    ----------
    mesh
        What the mapping is for.
    rows, columns
        The rectangle of PEs that it uses.
    bytes_per_pe
        Data of the PE that holds the most, buffers of messages under way included.
    colours
        Static routes of the router that has the most.
    """
    refusal = limit_refusal(mesh, rows, columns, bytes_per_pe, colours)
    if refusal is not None:
        raise WaferLimitError(refusal)


def limit_refusal(
    mesh: WaferDescription, rows: int, columns: int, bytes_per_pe: float, colours: int
) -> str | None:
    """The same as one line of text; None if the mapping fits. The rectangle comes first."""
    if rows < 1 or columns < 1:
        return f"a rectangle of {rows}x{columns} PEs was asked for; expected 1x1 or more"
    if rows > mesh.rows or columns > mesh.columns:
        return (
            f"rectangle: {rows}x{columns} PEs, and '{mesh.name}' has {mesh.rows}x{mesh.columns}; "
            "expected a smaller grid"
        )
    if bytes_per_pe > mesh.usable_bytes:
        return (
            f"SRAM: {bytes_per_pe:,.0f} bytes a PE, and '{mesh.name}' has {mesh.usable_bytes:,} "
            f"besides code and stack; expected smaller tiles or more PEs"
        )
    if colours > mesh.usable_colours:
        return (
            f"colours: {colours} routes in one router, and '{mesh.name}' has "
            f"{mesh.usable_colours} for programs; expected a pattern with fewer"
        )
    return None
