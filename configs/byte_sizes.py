"""Sizes in bytes, as people write them."""

from pydantic import ByteSize, TypeAdapter, ValidationError

from tvm_ext.configs.errors import ConfigError

_ADAPTER = TypeAdapter(ByteSize)


def parse_bytes(size: int | str, name: str) -> int:
    """The number of bytes that ``size`` is: a number of them, or a text such as "64MiB".

    Parameters
    ----------
    size : int or str
        A text is a number, with a unit or without: KiB, MiB and GiB are powers of 1024, KB, MB and
        GB of 1000.
    name : str
        What messages call it.

    Raises
    ------
    ConfigError
        It is neither, or not above 0.
    """
    if isinstance(size, int | str) and not isinstance(size, bool):
        try:
            found = int(_ADAPTER.validate_python(size))
        except (ValidationError, OverflowError):
            found = 0
        if found > 0:
            return found
    raise ConfigError(
        f"{name} is {size!r}; expected a number of bytes above 0, or a size with its unit: give "
        "one as 67108864 or '64MiB'"
    )
