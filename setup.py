"""Maps the top-level source folders into one import package, ``tvm_ext``.

The folders stay at the top of the tree so that the design is visible at a glance, and are
installed below ``tvm_ext`` so that no generic name (``tuning``, ``configs``) lands in a user's
environment. The list of packages is computed: a folder with an ``__init__.py`` cannot be forgotten.
"""

from setuptools import find_packages, setup

MAPPED_FOLDERS = ("relay_passes", "tir_schedules", "tuning", "hardware", "configs")


def computed_packages() -> tuple[list[str], dict[str, str]]:
    packages = ["tvm_ext"] + [f"tvm_ext.{name}" for name in find_packages("tvm_ext")]
    package_dir = {"tvm_ext": "tvm_ext"}
    for folder in MAPPED_FOLDERS:
        inner = find_packages(folder)
        packages += [f"tvm_ext.{folder}"] + [f"tvm_ext.{folder}.{name}" for name in inner]
        package_dir[f"tvm_ext.{folder}"] = folder
    return packages, package_dir


packages, package_dir = computed_packages()

setup(
    packages=packages,
    package_dir=package_dir,
    package_data={
        "tvm_ext": ["py.typed"],
        "tvm_ext.report": ["*.j2"],
        "tvm_ext.configs": [
            "targets/*.toml",
            "wafer/*.toml",
            "pipelines/*.toml",
            "efforts/*.toml",
            "records/*/*.jsonl",
        ],
    },
)
