"""Lets the tests import the modules beside them: the test folders are no packages."""

import sys
from pathlib import Path

# Of the tuning tests, the module that writes folders of records.
sys.path.insert(0, str(Path(__file__).parents[1] / "tuning"))
sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).parent))
