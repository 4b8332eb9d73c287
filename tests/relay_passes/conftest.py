"""Lets the tests import the modules beside them and the shared ones: test folders are no packages."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "shared"):
    sys.path.insert(0, str(folder))
