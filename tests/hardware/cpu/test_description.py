"""Descriptions of CPUs refuse what cannot be, and derived numbers have the units they claim."""

import pytest
import tvm
from pydantic import ValidationError

from tvm_ext.hardware.cpu.description import CpuDescription, code_target, llvm_features
from tvm_ext.hardware.cpu.features import features_from_flags, vector_bits
from tvm_ext.hardware.targets import resolve_target


def rebuilt(preset: str, **changes: object) -> CpuDescription:
    return CpuDescription(**(resolve_target(preset).model_dump() | changes))


def test_peak_is_lanes_times_units_times_clock_times_cores():
    cpu = rebuilt("avx2", cores=2, clock_ghz=2.0, fma_units=2)
    assert cpu.peak_flops("float32") == 2 * 8 * 2 * 2.0e9 * 2
    assert cpu.peak_flops("float64") == cpu.peak_flops("float32") / 2
    # No int8 dot product in AVX2, so int8 is no faster than float32.
    assert cpu.peak_flops("int8") == cpu.peak_flops("float32")


def test_features_that_no_code_uses_do_not_raise_the_peak():
    cpu = rebuilt("avx512", mattr=("+avx512vnni", "+avx512bf16", "+avx512fp16"))
    base = cpu.peak_flops("float32")
    assert cpu.peak_flops("int8") == base
    # Two products in each lane.
    assert cpu.peak_flops("bfloat16") == 2 * base
    assert rebuilt("avx512").peak_flops("bfloat16") == base
    # LLVM multiplies float16 as it is where it can.
    assert cpu.peak_flops("float16") == 2 * base
    assert rebuilt("avx512").peak_flops("float16") == base


def test_features_follow_mattr_and_required_features_are_all_of_them():
    cpu = rebuilt("avx512", mattr=("+avx512vnni", "-avx512cd"))
    assert "avx512vnni" in cpu.features
    assert "avx512cd" not in cpu.features
    assert cpu.required_features == cpu.features
    whole = "-prefer-256-bit"
    assert list(cpu.tvm_target().attrs["mattr"]) == ["+avx512vnni", "-avx512cd", whole]
    assert "mattr" not in rebuilt("avx2").tvm_target().attrs


def features_of(target: tvm.target.Target) -> frozenset[str]:
    attrs = target.attrs
    mattr = tuple(map(str, attrs.get("mattr") or ()))
    return llvm_features(str(attrs["mtriple"]), str(attrs["mcpu"]), mattr)


@pytest.mark.parametrize("mcpu", ["znver1", "znver3", "alderlake", "haswell"])
def test_code_of_sixteen_registers_has_all_features_and_loops_that_stay(mcpu):
    target = rebuilt("avx2", mcpu=mcpu).tvm_target()
    told = code_target(target)
    assert features_of(told) == features_of(target)
    assert told.attrs["mcpu"] == "x86-64-v3"
    assert told.attrs["num-cores"] == target.attrs["num-cores"]


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("avx512", {"mcpu": "znver4"}),
        ("aarch64-neon", {}),
        ("avx2", {"mcpu": "znver3", "mattr": ("-fma",)}),
    ],
)
def test_other_code_is_made_for_the_cpu_itself(preset, changes):
    target = rebuilt(preset, **changes).tvm_target()
    assert code_target(target).export() == target.export()


def test_with_cores_changes_cores_and_leaves_the_original():
    cpu = resolve_target("avx512")
    one = cpu.with_cores(1)
    assert (one.cores, cpu.cores) == (1, 16)
    assert one.peak_flops("float32") * 16 == pytest.approx(cpu.peak_flops("float32"))
    assert one.tvm_target().attrs["num-cores"] == 1
    assert one.bandwidth(1e12) == cpu.core_memory_gbs * 1e9
    assert cpu.bandwidth(1e12) == cpu.memory_gbs * 1e9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mcpu": "no-such-cpu"}, "LLVM has no CPU 'no-such-cpu'"),
        (
            {"mtriple": "bogus-linux-gnu"},
            "is of architecture 'bogus'; expected one of x86_64, aarch64",
        ),
        ({"mattr": ("+nosuchfeature",)}, "LLVM has no feature 'nosuchfeature'"),
        ({"mattr": ("avx512f",)}, "expected '\\+avx512f'"),
        ({"vector_bits": 512}, "vector_bits is 512"),
        ({"vector_bits": 100}, "vector_bits"),
        ({"cores": 0}, "greater than 0"),
        ({"cores": "4"}, "valid integer"),
        ({"core_l3_gbs": 1e6}, "expected each at most"),
        ({"target_options": {"no-such-option": 1}}, "no-such-option"),
        ({"l2_byte": 1}, "l2_byte"),
    ],
)
def test_impossible_descriptions_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        rebuilt("avx2", **changes)


def test_flags_become_llvm_names():
    features = features_from_flags("x86_64", {"avx512_vnni", "pni", "amx_tile", "hypervisor"})
    assert features == {"avx512vnni", "sse3", "amx-tile"}
    assert features_from_flags("aarch64", {"asimddp"}) == {"dotprod"}
    assert features_from_flags("riscv64", {"v"}) == frozenset()


def test_vector_width_follows_features():
    assert vector_bits("x86_64", llvm_features("x86_64-linux-gnu", "x86-64-v4")) == 512
    assert vector_bits("x86_64", llvm_features("x86_64-linux-gnu", "x86-64-v3")) == 256
    assert vector_bits("x86_64", llvm_features("x86_64-linux-gnu", "x86-64-v2")) == 128
    assert vector_bits("aarch64", llvm_features("arm64-apple-darwin", "apple-m1")) == 128
