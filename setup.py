"""Packages and data files; the rest stands in pyproject.toml.

``tvm_ext`` holds a relative link to each source folder at the top of the tree. The folders stay
there so that the design is visible at a glance, and are installed below ``tvm_ext`` so that no
generic name (``tuning``, ``configs``) lands in a user's environment.
"""

from setuptools import find_packages, setup

setup(
    packages=find_packages(include=["tvm_ext", "tvm_ext.*"]),
    # Folders of data are named below; else setuptools warns that they are no packages.
    include_package_data=False,
    package_data={
        "tvm_ext": ["py.typed"],
        "tvm_ext.report": ["*.j2"],
        "tvm_ext.export": ["*.c", "*.h", "*.j2"],
        "tvm_ext.wafer": ["*.j2"],
        "tvm_ext.hardware.cpu": ["thread_pool.c"],
        "tvm_ext.configs": [
            "targets/*.toml",
            "wafer/*.toml",
            "pipelines/*.toml",
            "efforts/*.toml",
            "records/*/*.jsonl",
        ],
    },
)
