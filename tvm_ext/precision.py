"""The floating-point types in their order of precision."""

FLOATS_WIDEST_FIRST = ("float64", "float32", "float16", "bfloat16")


def narrowest_float(*dtypes: str) -> str:
    """The least precise of the floating-point types among ``dtypes``; "" when there is none."""
    floats = [dtype for dtype in dtypes if dtype in FLOATS_WIDEST_FIRST]
    return max(floats, key=FLOATS_WIDEST_FIRST.index, default="")
