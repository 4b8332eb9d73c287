"""What the system says of the CPU: flags, caches, and how many cores may be used."""

import pathlib
import platform

import pytest

from tvm_ext.hardware.cpu import system
from tvm_ext.hardware.cpu.features import X86_FLAGS
from tvm_ext.hardware.cpu.system import (
    CacheSizes,
    cpu_facts,
    host_cpu_features,
    parse_cpuinfo,
    read_cgroup_quota,
    read_sysfs_caches,
    usable_cores,
)


def write(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc/cpuinfo")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86 flags")
def test_host_features_are_the_flags_of_proc_cpuinfo():
    flags = set(pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    expected = {name for flag in flags & X86_FLAGS.keys() for name in X86_FLAGS[flag]}
    assert host_cpu_features() >= expected
    assert ("avx512f" in host_cpu_features()) == ("avx512f" in flags)


def test_cpuinfo_counts_only_flags_all_processors_have():
    text = (
        "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel name\t: A CPU\n"
        "flags\t\t: fma avx2 avx512f\n\nvendor_id\t: AuthenticAMD\nflags\t\t: fma avx2\n"
    )
    facts = parse_cpuinfo(text, "x86_64")
    assert {"fma", "avx2", "sse2"} <= facts.features
    assert "avx512f" not in facts.features
    assert (facts.vendor, facts.family, facts.model_name) == ("AuthenticAMD", 25, "A CPU")


def test_cpuinfo_of_arm_and_no_cpuinfo_at_all():
    facts = parse_cpuinfo("Features\t: fp asimd asimddp\nCPU part\t: 0xd0c\n", "aarch64")
    assert facts.features == {"fp-armv8", "neon", "dotprod"}
    assert parse_cpuinfo("", "x86_64").features == {"cx8", "cmov", "sse", "sse2"}


def test_macos_asks_sysctl(monkeypatch):
    answers = {"hw.optional.arm.FEAT_DotProd": "1", "machdep.cpu.brand_string": "Apple M1"}
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(system, "_sysctl", lambda name: answers.get(name, ""))
    facts = cpu_facts.__wrapped__()
    assert facts.features == {"fp-armv8", "neon", "dotprod"}
    assert facts.model_name == "Apple M1"


def test_macos_on_intel(monkeypatch):
    answers = {
        "machdep.cpu.features": "FPU SSE3 SSE4.2 AVX1.0 FMA MOVBE",
        "machdep.cpu.leaf7_features": "BMI1 AVX2 AVX512F",
        "machdep.cpu.extfeatures": "LAHF LZCNT",
    }
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(system, "_sysctl", lambda name: answers.get(name, ""))
    expected = {"sse3", "sse4.2", "avx", "fma", "movbe", "bmi", "avx2", "avx512f", "sahf", "lzcnt"}
    assert expected <= cpu_facts.__wrapped__().features


def test_caches_count_each_shared_l3_once(tmp_path):
    for cpu, sharers in ((0, "0-1"), (1, "0-1"), (2, "2-3")):
        for index, level, kind, size in (
            (0, 1, "Data", "32K"),
            (1, 1, "Instruction", "64K"),
            (2, 2, "Unified", "1M"),
            (3, 3, "Unified", "16M"),
        ):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            write(folder / "level", str(level))
            write(folder / "type", kind)
            write(folder / "size", size)
            write(folder / "shared_cpu_list", sharers)
    sizes = read_sysfs_caches(tmp_path, frozenset({0, 1, 2}))
    assert sizes == CacheSizes(32 << 10, 1 << 20, 32 << 20)
    assert read_sysfs_caches(tmp_path, frozenset({0})).l3 == 16 << 20
    assert read_sysfs_caches(tmp_path / "absent", frozenset({0})) == CacheSizes()


@pytest.mark.parametrize(
    ("name", "text", "quota"),
    [
        ("cpu.max", "150000 100000", 1.5),
        ("cpu.max", "max 100000", None),
        ("cpu/cpu.cfs_quota_us", "-1", None),
        ("cpu/cpu.cfs_quota_us", "400000", 4.0),
        ("cpu.max", "nonsense", None),
    ],
)
def test_cgroup_quota(tmp_path, name, text, quota):
    write(tmp_path / name, text)
    write(tmp_path / "cpu" / "cpu.cfs_period_us", "100000")
    assert read_cgroup_quota(tmp_path, "") == quota


@pytest.mark.parametrize(
    ("name", "text", "memberships", "quota"),
    [
        ("a/b/cpu.max", "50000 100000", "0::/a/b", 0.5),
        ("a/cpu.max", "300000 100000", "0::/a/b", 3.0),
        ("cpu/a/cpu.cfs_quota_us", "50000", "3:memory:/x\n1:cpu,cpuacct:/a\n0::/", 0.5),
        ("c/cpu.max", "50000 100000", "0::/a/b", None),
        ("cpu.max", "200000 100000", "0::/../elsewhere", 2.0),
    ],
)
def test_quotas_of_the_process_and_of_all_groups_around_it(
    tmp_path, name, text, memberships, quota
):
    write(tmp_path / name, text)
    write(tmp_path / "cpu" / "a" / "cpu.cfs_period_us", "100000")
    assert read_cgroup_quota(tmp_path, memberships) == quota


@pytest.mark.parametrize(
    ("variables", "cores"),
    [
        ({"TVM_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "5,2"}, 5),
        ({"TVM_NUM_THREADS": "4", "OMP_NUM_THREADS": "2"}, 4),
        ({"TVM_NUM_THREADS": "64"}, 8),
        ({"TVM_NUM_THREADS": "0"}, 8),
        ({"OMP_NUM_THREADS": "many"}, 8),
    ],
)
def test_usable_cores_are_no_more_than_users_of_tvm_and_openmp_say(monkeypatch, variables, cores):
    monkeypatch.setattr(system, "usable_cpus", lambda: frozenset(range(8)))
    monkeypatch.setattr(system, "read_cgroup_quota", lambda *_: None)
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert usable_cores() == cores


def test_usable_cores_are_cut_by_the_quota_but_never_none(monkeypatch):
    monkeypatch.setattr(system, "usable_cpus", lambda: frozenset(range(8)))
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for quota, cores in ((None, 8), (2.5, 3), (0.2, 1), (64.0, 8)):
        monkeypatch.setattr(system, "read_cgroup_quota", lambda *_, quota=quota: quota)
        assert usable_cores() == cores
