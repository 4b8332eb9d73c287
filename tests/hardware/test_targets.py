"""Targets are found by name, file or TVM target; what is not found says what there is."""

import pytest
import tvm

from tvm_ext.configs.errors import ConfigError, TargetError
from tvm_ext.configs.loader import config_folder
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.cuda.host import DEFAULT_CUDA
from tvm_ext.hardware.targets import compiling_for, list_targets, resolve_target


def test_every_listed_target_resolves_to_its_kind():
    targets = list_targets()
    assert [target.name for target in targets[:2]] == ["cpu", "cuda"]
    for target in targets:
        assert resolve_target(target.name).kind == target.kind
        assert target.summary
        assert "\n" not in target.summary


def test_cpu_is_this_machine_and_cuda_the_default_gpu_without_one(monkeypatch):
    monkeypatch.setattr("tvm_ext.hardware.cuda.host.host_gpu", lambda presets: None)
    assert resolve_target("cpu") is host_description()
    assert resolve_target("cuda").name == DEFAULT_CUDA


def test_a_description_comes_back_as_it_is():
    description = resolve_target("avx2").with_cores(3)
    assert resolve_target(description) is description


@pytest.mark.parametrize("as_text", [True, False])
def test_a_users_file(tmp_path, as_text):
    path = tmp_path / "mine.toml"
    text = (config_folder("targets") / "avx2.toml").read_text(encoding="utf-8")
    path.write_text(text.replace('"avx2"', '"mine"'), encoding="utf-8")
    assert resolve_target(str(path) if as_text else path).name == "mine"


def test_a_users_file_with_a_misspelt_key(tmp_path):
    path = tmp_path / "mine.toml"
    text = (config_folder("targets") / "avx2.toml").read_text(encoding="utf-8")
    path.write_text(text.replace("l2_bytes", "l2_byte"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"'l2_byte' in mine\.toml; nearest known: 'l2_bytes'"):
        resolve_target(path)


def test_a_users_file_with_a_cpu_llvm_does_not_know(tmp_path):
    path = tmp_path / "mine.toml"
    text = (config_folder("targets") / "avx2.toml").read_text(encoding="utf-8")
    path.write_text(text.replace("x86-64-v3", "x86-64-v9"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mine\.toml: LLVM has no CPU 'x86-64-v9'"):
        resolve_target(path)


@pytest.mark.parametrize("line", ["", 'kind = "fpga"\n'])
def test_a_users_file_of_no_known_kind(tmp_path, line):
    path = tmp_path / "mine.toml"
    path.write_text(line + 'name = "mine"\n', encoding="utf-8")
    with pytest.raises(TargetError, match=r"'kind' in mine\.toml is .*expected one of 'cpu'"):
        resolve_target(path)


def test_unknown_name_gives_the_nearest_and_the_list():
    with pytest.raises(TargetError) as caught:
        resolve_target("avx51")
    message = str(caught.value)
    assert "nearest known: 'avx512'" in message
    assert "nvidia-a100" in message
    assert "\n" not in message


def test_names_cannot_leave_the_folder_of_presets():
    with pytest.raises(TargetError, match="unknown target"):
        resolve_target("../targets/avx2")


@pytest.mark.parametrize("name", ["cpu", "avx2", "avx512-amx", "aarch64-neon", "nvidia-h100"])
def test_tvm_target_and_back(name):
    target = resolve_target(name).tvm_target()
    assert str(resolve_target(target).tvm_target()) == str(target)


@pytest.mark.parametrize("kind", ["opencl", "c", "vulkan"])
def test_unsupported_kind(kind):
    with pytest.raises(TargetError, match=f"kind '{kind}' is not supported"):
        resolve_target(tvm.target.Target(kind))


def test_the_machine_compiled_for_keeps_its_numbers():
    machine = resolve_target("cpu").model_copy(update={"memory_gbs": 1234.5})
    with compiling_for(machine) as target:
        assert tvm.target.Target.current().same_as(target)
        assert resolve_target(tvm.target.Target.current()) is machine
        assert resolve_target(tvm.target.Target("cuda")).kind == "cuda"
    assert resolve_target(target) is not machine
    assert tvm.target.Target.current(allow_none=True) is None
