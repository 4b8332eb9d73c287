"""Wheels of projects that setuptools builds."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own: setuptools replaces distutils in the whole of it.
_BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"


def built_wheel(source: Path, folder: Path) -> Path:
    """The wheel of the project in ``source``, which is written next to as well, in ``folder``.

    Its build backend is called as pip would: pip itself takes four times as long.
    """
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("needs setuptools to build a wheel")
    command = [sys.executable, "-c", _BUILD, str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=600)
    (found,) = folder.glob("*.whl")
    return found
