"""TVM targets of kind llvm are CPUs, with numbers of this machine or of a preset."""

import pytest
import tvm

from tvm_ext.configs.errors import ConfigError, TargetError
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.targets import resolve_target

ARM = "aarch64-linux-gnu"


def test_tvm_target_for_this_machines_features_has_this_machines_numbers():
    host = host_description()
    config = {"kind": "llvm", "mtriple": host.mtriple, "mcpu": "generic", "num-cores": 1}
    description = resolve_target(tvm.target.Target(config))
    assert description.l2_bytes == host.l2_bytes
    assert description.vector_bits == 128
    assert description.cores == 1


def test_tvm_target_for_another_machine_has_the_closest_presets_numbers():
    config = {"kind": "llvm", "mtriple": ARM, "mcpu": "neoverse-n1", "num-cores": 3}
    description = resolve_target(tvm.target.Target(config))
    assert (description.name, description.cores) == ("neoverse-n1", 3)
    assert "dotprod" in description.features
    if host_description().architecture != "aarch64":
        assert "aarch64-neon" in description.summary


def test_tvm_target_keeps_its_other_options():
    config = {"kind": "llvm", "mtriple": ARM, "fast-math": True, "cl-opt": ["-x=1"], "num-cores": 2}
    rebuilt = resolve_target(tvm.target.Target(config)).tvm_target()
    assert rebuilt.attrs["fast-math"] is True
    assert list(rebuilt.attrs["cl-opt"]) == ["-x=1"]


def test_unknown_architecture():
    target = tvm.target.Target({"kind": "llvm", "mtriple": "riscv64-linux-gnu"})
    if host_description().architecture == "riscv64":
        pytest.skip("this machine is one")
    with pytest.raises(TargetError, match="architecture 'riscv64'"):
        resolve_target(target)


def test_impossible_core_count_in_a_tvm_target():
    target = tvm.target.Target({"kind": "llvm", "mtriple": ARM, "num-cores": -1})
    with pytest.raises(ConfigError, match="'cores' in the TVM target is -1"):
        resolve_target(target)
