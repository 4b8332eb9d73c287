"""The machines that are described in files: the presets of ``configs/targets``, and users' own."""

import pathlib
from functools import cache
from typing import Any

from tvm_ext.configs.loader import check_config, config_folder, read_toml
from tvm_ext.hardware.description import CpuDescription, Description, GpuDescription
from tvm_ext.hardware.errors import TargetError
from tvm_ext.hardware.mesh_description import MeshDescription

_MODELS: dict[str, type[Description]] = {
    "cpu": CpuDescription,
    "cuda": GpuDescription,
    "mesh": MeshDescription,
}


def load_description(source: Any) -> Description:
    """Read a description from a TOML file; its key ``kind`` says of what.

    Raises :class:`ConfigError` for a file that cannot be read or is not valid, and
    :class:`TargetError` for a ``kind`` that does not exist.
    """
    data = read_toml(source)
    kind = data.get("kind")
    if kind not in _MODELS:
        raise TargetError(
            f"key 'kind' in {source.name} is {kind!r}; expected one of "
            f"{', '.join(repr(name) for name in _MODELS)}"
        )
    return check_config(data, _MODELS[kind], source.name)


def preset_names() -> list[str]:
    """Those of all presets, sorted."""
    entries = [pathlib.PurePath(entry.name) for entry in config_folder("targets").iterdir()]
    return sorted(entry.stem for entry in entries if entry.suffix == ".toml")


@cache
def preset(name: str) -> Description:
    """The preset of this name."""
    return load_description(config_folder("targets") / f"{name}.toml")


def gpu_presets() -> list[GpuDescription]:
    """Those of GPUs, by name."""
    return [item for item in map(preset, preset_names()) if isinstance(item, GpuDescription)]
