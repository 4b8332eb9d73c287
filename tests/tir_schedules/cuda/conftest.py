"""Lets the tests import the modules beside them and those of the folder above."""

import sys
from pathlib import Path

FOLDERS = (Path(__file__).parent, Path(__file__).parents[1], Path(__file__).parents[2] / "shared")
for folder in FOLDERS:
    sys.path.insert(0, str(folder))
