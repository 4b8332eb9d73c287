"""Whether this machine runs code for a CPU, before a session measures it."""

from collections.abc import Sequence

from tvm_ext.configs.errors import TuningError
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tuning.runner import RunDeviceAddress


def check_runs_here(machine: CpuDescription, servers: Sequence[RunDeviceAddress]) -> dict[str, str]:
    """Refuses a target whose code this machine would not run, where it has to."""
    host = host_description()
    lacking = sorted(set(machine.required_features) - set(host.required_features))
    if servers or (machine.architecture == host.architecture and not lacking):
        return {}
    what = f"lacks {', '.join(lacking[:3])}" if lacking else f"is {host.architecture}"
    raise TuningError(
        f"this machine {what}, so code for target '{machine.name}' cannot be measured here; "
        "expected a target that it can run: leave --target out, or measure on servers that can "
        "with --rpc-tracker"
    )
