"""The generator of random numbers for all tests, which starts anew at each one (``conftest.py``).

So a test's data is the same whichever tests its process ran before.
"""

import numpy as np

RANDOM = np.random.default_rng()


def start_anew(seed: int) -> None:
    """The same numbers follow as after any other call with this seed."""
    RANDOM.bit_generator.state = np.random.default_rng(seed).bit_generator.state
