"""Element types below a byte, which a compiled program holds in a byte each."""

import ml_dtypes
import numpy as np

# The names are NumPy's with ml_dtypes; each holder has all numbers of its type.
HOLDERS = {
    "int4": "int8",
    "uint4": "uint8",
    "int2": "int8",
    "uint2": "uint8",
    "float4_e2m1fn": "float8_e4m3fn",
    "float6_e2m3fn": "float8_e4m3fn",
    "float6_e3m2fn": "float8_e4m3fn",
}


def numpy_type(name: str) -> np.dtype:
    """The type of this name, those of ml_dtypes included."""
    return np.dtype(getattr(ml_dtypes, name, name))


def hold(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array of ``dtype`` as the program takes it."""
    return array.astype(numpy_type(HOLDERS[dtype])) if dtype in HOLDERS else array


def release(array: np.ndarray, dtype: str) -> np.ndarray:
    """What the program returned, in the output's own ``dtype``."""
    return array.astype(numpy_type(dtype)) if dtype in HOLDERS else array
