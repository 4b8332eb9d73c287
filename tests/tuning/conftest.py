"""Lets the tests import the modules beside them, and the templates' tests' kernels.

The test folders are no packages.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
templates = Path(__file__).parents[1] / "tir_schedules"
shared = Path(__file__).parents[1] / "shared"
for folder in (templates / "wafer", templates, templates / "cuda", shared):
    sys.path.append(str(folder))
