"""Compiles the programs of all devices, into one file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from tvm_ext.artifact import read_artifact, write_artifact
from tvm_ext.artifact.manifest import ShardedRecord, part_member
from tvm_ext.compiled_model import CompiledModel
from tvm_ext.compiler.backend import programs_of, target_record, threads_of
from tvm_ext.configs.errors import nearest_hint
from tvm_ext.configs.sharding_record import ShardingRecord
from tvm_ext.distributed.collective_functions import register_collectives
from tvm_ext.distributed.mpi_communicator import mpi_communicator
from tvm_ext.distributed.mpi_environment import mpi_rank
from tvm_ext.distributed.sharded_model import ShardedModel, temporary_file
from tvm_ext.errors import BuildError, InputError, PassError
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.passes.pipeline import Pipeline, with_options
from tvm_ext.relay_passes.sharding.strategy import AUTOMATIC, STRATEGIES
from tvm_ext.report.records import PhaseRecord
from tvm_ext.tensor_spec import resized

ShardSource: TypeAlias = "str | Mapping[str, int]"

PASS = "SpmdPartition"

# As many as a host has cores.
_MOST_DEVICES = 256


@dataclass(frozen=True)
class ShardingRequest:
    """How a user wants a model split.

    Attributes
    ----------
    devices : int
        How many processes run it.
    shard : str or mapping of pattern to axis
        As for ``tvm_ext.compile``.

    Raises
    ------
    InputError
        There is no such split.
    """

    devices: int
    shard: ShardSource = AUTOMATIC

    def __post_init__(self) -> None:
        if type(self.devices) is not int or not 1 <= self.devices <= _MOST_DEVICES:
            raise InputError(
                f"{self.devices!r} devices were asked for; expected 1 to {_MOST_DEVICES}"
            )
        if isinstance(self.shard, str):
            if self.shard not in STRATEGIES:
                hint = nearest_hint(self.shard, STRATEGIES)
                raise InputError(f"shard is '{self.shard}', which does not exist; {hint}")
        elif not self._are_patterns():
            raise InputError(
                f"shard is {self.shard!r}; expected 'data', 'tensor', 'auto', or axes by pattern: "
                "write {'*.q_proj*': 1}"
            )

    def check(self, machine: MachineDescription) -> None:
        """Raises InputError for a machine without processes for it."""
        if programs_of(machine).device != "cpu":
            raise InputError(
                f"devices: target '{machine.name}' is not a CPU; expected a CPU: leave devices out"
            )
        if self.devices > 1 and mpi_rank() is not None:
            # A process that fails from here on is noticed by the others.
            mpi_communicator()

    def _are_patterns(self) -> bool:
        if not isinstance(self.shard, Mapping) or not self.shard:
            return False
        pairs = self.shard.items()
        return all(isinstance(key, str) and type(axis) is int for key, axis in pairs)

    def pipeline(self, pipeline: Pipeline, rank: int) -> Pipeline:
        """The passes for one of the devices."""
        options: dict[str, object] = {"devices": self.devices, "rank": rank}
        if isinstance(self.shard, str):
            options["shard"] = self.shard
        else:
            options["patterns"] = tuple(self.shard.items())
        return with_options(pipeline, PASS, options)


def threads_of_device(machine: MachineDescription, devices: int) -> int | None:
    """Threads for each of several devices on a machine; None where it has none to share."""
    return max(1, threads_of(machine) // devices) if programs_of(machine).device == "cpu" else None


def compile_sharded(
    request: ShardingRequest,
    machine: MachineDescription,
    pipeline: Pipeline,
    compile_one: Callable[[Pipeline], CompiledModel],
) -> ShardedModel:
    """The model for several devices, of whose programs ``compile_one`` compiles each.

    Raises
    ------
    TvmExtError
        As ``compile_one``; InputError where the model cannot be split as asked.
    """
    # A program is linked against what it calls.
    register_collectives(is_disco=True)
    first = compile_one(request.pipeline(pipeline, 0))
    sharding = first.report.sharding
    if sharding is None:
        raise InputError(
            f"{first.report.model_name} cannot be split over devices with pass '{PASS}' left out, "
            "or with steps on the host; expected one program: run it with one device"
        )
    parts = [first]
    for rank in range(1, 1 if sharding.alike else request.devices):
        parts.append(_compiled_for(rank, request, pipeline, compile_one))
        _require_same(first, parts[-1], rank)
    return _joined(parts, request.devices, sharding, machine)


def _compiled_for(
    rank: int,
    request: ShardingRequest,
    pipeline: Pipeline,
    compile_one: Callable[[Pipeline], CompiledModel],
) -> CompiledModel:
    try:
        return compile_one(request.pipeline(pipeline, rank))
    except (BuildError, PassError) as error:
        raise type(error)(f"device {rank} of {request.devices}: {error}") from error


def _require_same(first: CompiledModel, other: CompiledModel, rank: int) -> None:
    """Programs that exchange other values than each other would wait for ever."""
    own = [model.report.sharding for model in (first, other)]
    kinds = [[(one.kind, one.nbytes) for one in record.collectives] for record in own if record]
    if kinds[0] != kinds[-1]:
        raise BuildError(
            f"bug in tvm-ext: the programs of devices 0 and {rank} exchange different values; "
            "expected the same: compile the model for one device",
            defect=True,
        )


def _joined(
    parts: list[CompiledModel], devices: int, sharding: ShardingRecord, machine: MachineDescription
) -> ShardedModel:
    first = parts[0]
    inputs, outputs = first.inputs, first.outputs
    if not sharding.open_batch:
        inputs = resized(inputs, sharding.inputs, lambda size: size * devices)
        outputs = resized(outputs, sharding.outputs, lambda size: size * devices)
    report = replace(
        first.report,
        inputs=[spec.describe() for spec in inputs],
        outputs=[spec.describe() for spec in outputs],
        phases=_all_phases(parts),
    )
    members = {}
    file = temporary_file()
    try:
        for number, part in enumerate(parts):
            part.save(file)
            members[part_member(number)] = file.read_bytes()
        write_artifact(
            file,
            members=members,
            report_json=report.to_json(),
            model_name=report.model,
            inputs=inputs,
            outputs=outputs,
            target=target_record(machine),
            sharded=ShardedRecord(
                devices=devices,
                inputs=tuple(sharding.inputs),
                outputs=tuple(sharding.outputs),
                programs=tuple(min(rank, len(parts) - 1) for rank in range(devices)),
            ),
        )
        return ShardedModel(read_artifact(file), is_temporary=True)
    finally:
        file.unlink(missing_ok=True)


def _all_phases(parts: list[CompiledModel]) -> list[PhaseRecord]:
    seconds: dict[str, float] = {}
    for part in parts:
        for phase in part.report.phases:
            seconds[phase.name] = seconds.get(phase.name, 0.0) + phase.seconds
    return [PhaseRecord(name, one) for name, one in seconds.items()]
