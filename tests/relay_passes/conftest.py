"""Lets the tests import the modules beside them and the shared ones: no folder is a package."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "shared"):
    sys.path.insert(0, str(folder))
