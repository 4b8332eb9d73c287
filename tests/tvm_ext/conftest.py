"""Lets the tests import the modules beside them: the test folders are no packages."""

import sys
from pathlib import Path

# Of the tuning tests, the module that writes folders of records; the emulator of CUDA code.
for folder in ("tuning", "shared"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
sys.path.insert(0, str(Path(__file__).parent))
