"""Lets the tests import the benchmark's modules as its script does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
