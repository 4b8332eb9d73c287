"""The TOML loader's errors, and every target preset: it loads, and it builds the code it claims."""

import pathlib
import re

import pytest
import tvm
from pydantic import Field
from tvm.script import tirx as T

from tvm_ext.configs.errors import ConfigError
from tvm_ext.configs.loader import ConfigModel, config_folder, load_toml, read_toml
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.targets import load_description
from tvm_ext.hardware.wafer.description import WaferDescription

PRESETS = sorted(
    entry.name.removesuffix(".toml")
    for entry in config_folder("targets").iterdir()
    if entry.name.endswith(".toml")
)


class Cache(ConfigModel):
    l2_bytes: int
    ways: int = 8


class MachineFile(ConfigModel):
    name: str
    cpu: Cache
    levels: list[Cache] = Field(default_factory=list)


def error_for(tmp_path: pathlib.Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_toml(path, MachineFile)
    message = str(caught.value)
    assert "\n" not in message
    assert "mine.toml" in message
    return message


def test_valid_file_becomes_the_model(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('name = "m"\n[cpu]\nl2_bytes = 4\n', encoding="utf-8")
    assert load_toml(str(path), MachineFile) == MachineFile(name="m", cpu=Cache(l2_bytes=4))


def test_unknown_key_names_its_section_and_the_nearest_key(tmp_path):
    message = error_for(tmp_path, 'name = "m"\n[cpu]\nl2_byte = 4\n')
    assert message.startswith("unknown key 'l2_byte' in [cpu] of mine.toml; nearest known")
    assert "'l2_bytes'" in message


def test_unknown_key_at_the_top_and_in_a_list_of_tables(tmp_path):
    assert "unknown key 'nam' in mine.toml; nearest known: 'name'" in error_for(
        tmp_path, 'nam = "m"\n[cpu]\nl2_bytes = 4\n'
    )
    inner = error_for(
        tmp_path, 'name = "m"\n[cpu]\nl2_bytes = 4\n[[levels]]\nl2_bytes = 1\nway = 2\n'
    )
    assert "nearest known: 'ways'" in inner


def test_unknown_key_unlike_any_lists_the_known_ones(tmp_path):
    message = error_for(tmp_path, 'name = "m"\n[cpu]\nl2_bytes = 4\nqqq = 1\n')
    assert "known: l2_bytes, ways" in message


def test_missing_key(tmp_path):
    assert "missing key 'l2_bytes' in [cpu] of mine.toml" in error_for(
        tmp_path, 'name = "m"\n[cpu]\n'
    )


def test_wrong_type_says_what_was_found_and_expected(tmp_path):
    message = error_for(tmp_path, 'name = "m"\n[cpu]\nl2_bytes = "4"\n')
    assert "key 'l2_bytes' in [cpu] of mine.toml is '4' (str); expected a valid integer" in message


def test_broken_toml_names_the_line(tmp_path):
    assert "line 2" in error_for(tmp_path, 'name = "m"\ncpu = = 1\n')


def test_file_that_is_not_text(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"mine\.toml is not valid TOML"):
        read_toml(path)


def test_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        load_toml(tmp_path / "absent.toml", MachineFile)


@T.prim_func
def multiply_add(
    a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32"), c: T.Buffer((64,), "float32")
) -> None:
    T.func_attr({"global_symbol": "multiply_add"})
    for i in range(4):
        for j in T.vectorized(16):
            c[i * 16 + j] = a[i * 16 + j] * b[i * 16 + j] + c[i * 16 + j]


def assembly(target: tvm.target.Target) -> str:
    module = tvm.IRModule({"multiply_add": multiply_add})
    return tvm.tirx.build(module, target=target).inspect_source("s")


@pytest.mark.parametrize("preset", PRESETS)
def test_file_name_is_the_name_in_the_file(preset):
    assert load_description(config_folder("targets") / f"{preset}.toml").name == preset


@pytest.mark.parametrize("preset", PRESETS)
def test_every_number_stands_under_a_comment(preset):
    entry = config_folder("targets") / f"{preset}.toml"
    explained = False
    for line in entry.read_text(encoding="utf-8").splitlines():
        # A comment explains the keys after it, up to the next text or blank line.
        explained = line.startswith("#") or (explained and not re.match(r'\s*$|\w+ = "', line))
        assert explained or not re.match(r"\w+ = [\d.]", line), line


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_gives_a_tvm_target(preset):
    description = load_description(config_folder("targets") / f"{preset}.toml")
    target = description.tvm_target()
    if isinstance(description, CudaDescription):
        assert target.kind.name == "cuda"
        assert target.attrs["arch"] == description.arch
        assert target.attrs["max_shared_memory_per_block"] == description.shared_memory_bytes
    elif isinstance(description, WaferDescription):
        assert target.kind.name == "llvm"
        assert target.attrs["device"] == description.device
    else:
        assert target.kind.name == "llvm"
        assert target.attrs["num-cores"] == description.cores


@pytest.mark.parametrize(
    ("preset", "present", "absent"),
    [
        ("x86-64", r"mulps\s.*%xmm", r"%[yz]mm|vfmadd"),
        ("avx2", r"vfmadd\w+\s.*%ymm", r"%zmm"),
        ("avx512", r"vfmadd\w+\s.*%zmm", None),
        ("avx512-amx", r"vfmadd\w+\s.*%zmm", None),
        ("aarch64-neon", r"fmla\s+v\d+\.4s", r"\bz\d+\.s\b"),
    ],
)
def test_cpu_preset_builds_the_vectors_it_claims(preset, present, absent):
    description = load_description(config_folder("targets") / f"{preset}.toml")
    assert isinstance(description, CpuDescription)
    code = assembly(description.tvm_target())
    assert re.search(present, code)
    assert absent is None or not re.search(absent, code)


def test_rates_of_the_amx_preset_are_those_of_tile_registers():
    """In 16 cycles 16 x 16 sums of 64 bytes each: Intel 64 and IA-32 Architectures Optimization
    Reference Manual, "Intel AMX"."""
    amx = load_description(config_folder("targets") / "avx512-amx.toml")
    assert "amx-tile" in amx.features
    cycles = amx.clock_ghz * 1e9 * amx.cores
    assert amx.peak_flops("bfloat16") == 2 * 16 * 32 * cycles == 16 * amx.peak_flops("float32")
    assert amx.peak_flops("int8") == amx.peak_flops("uint8") == 2 * 16 * 64 * cycles


@pytest.mark.parametrize(
    ("preset", "tflops"),
    [("nvidia-a100", 19.5), ("nvidia-h100", 67.0), ("nvidia-rtx4090", 82.6)],
)
def test_float32_rate_of_a_gpu_is_that_of_its_data_sheet(preset, tflops):
    description = load_description(config_folder("targets") / f"{preset}.toml")
    assert description.peak_flops("float32") / 1e12 == pytest.approx(tflops, rel=0.01)
