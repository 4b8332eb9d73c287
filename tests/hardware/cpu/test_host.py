"""The host description never claims an instruction that the CPU's flags do not show."""

from tvm_ext.hardware.cpu.description import llvm_features
from tvm_ext.hardware.cpu.features import features_from_flags
from tvm_ext.hardware.cpu.host import choose_cpu, fma_units, host_description, host_triple
from tvm_ext.hardware.cpu.system import CpuFacts, host_cpu_features, usable_cpus

X86 = "x86_64-linux-gnu"


def test_host_targets_no_instruction_its_flags_lack():
    host = host_description()
    assert set(host.features) <= host_cpu_features()
    assert set(host.features) == host_cpu_features() or host.mcpu == "generic"


def test_host_description_is_cached_and_sane():
    host = host_description()
    assert host is host_description()
    assert host.name == "cpu"
    assert host.mtriple == host_triple(host.architecture)
    assert 1 <= host.cores <= len(usable_cpus())
    assert host.l1d_bytes < host.l2_bytes
    assert 0.1 < host.clock_ghz < 10
    assert host.tvm_target().attrs["num-cores"] == host.cores


def test_llvm_name_is_kept_when_it_fits_exactly():
    features = llvm_features(X86, "znver4")
    assert choose_cpu(X86, features, "znver4") == ("znver4", ())


def test_wrongly_named_virtual_machine_gets_a_level_and_the_rest_as_attributes():
    # Flags of a Sapphire Rapids; LLVM calls the machine by a name that knows no AMX.
    features = llvm_features(X86, "sapphirerapids")
    mcpu, mattr = choose_cpu(X86, features, "rocketlake")
    assert mcpu == "x86-64-v4"
    assert {"+amx-tile", "+amx-bf16", "+avx512vnni"} <= set(mattr)
    assert llvm_features(X86, mcpu, mattr) == features


def test_hidden_instructions_are_not_targeted():
    features = llvm_features(X86, "znver4") - {"avx512vl", "avx512bf16"}
    mcpu, mattr = choose_cpu(X86, features, "znver4")
    assert mcpu == "x86-64-v3"
    chosen = llvm_features(X86, mcpu, mattr)
    assert chosen == features
    assert "avx512vl" not in chosen


def test_unknown_llvm_name_and_bare_cpu():
    features = llvm_features(X86, "x86-64")
    assert choose_cpu(X86, features, "cpu-of-next-year") == ("x86-64", ())
    assert choose_cpu(X86, frozenset(), "znver4") == ("generic", ())


def test_arm_server_by_flags():
    flags = {"fp", "asimd", "atomics", "asimddp", "asimdhp"}
    features = features_from_flags("aarch64", flags)
    mcpu, mattr = choose_cpu("aarch64-linux-gnu", features, "neoverse-v1")
    assert mcpu == "generic"
    assert mattr == ("+dotprod", "+fullfp16", "+lse")


def test_multiply_add_units_by_vendor():
    wide = frozenset({"fma", "avx512f"})
    assert fma_units(CpuFacts("x86_64", wide, "AuthenticAMD", 25), 512) == 1
    assert fma_units(CpuFacts("x86_64", wide, "AuthenticAMD", 26), 512) == 2
    assert fma_units(CpuFacts("x86_64", wide, "AuthenticAMD", 25), 256) == 2
    assert fma_units(CpuFacts("x86_64", wide, "GenuineIntel", 6), 512) == 2
    assert fma_units(CpuFacts("x86_64", frozenset({"sse2"})), 128) == 1
