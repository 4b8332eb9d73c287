"""The last words of a saved model: its format, and a digest of everything before the digest."""

import hashlib
import os
import re
from dataclasses import dataclass
from typing import BinaryIO

from tvm_ext.artifact.manifest import FORMAT_NAME

_DIGEST_LENGTH = 64
_CHUNK_BYTES = 1 << 20
_SEAL = re.compile(
    rb"%s format ([0-9]{1,9}) sha256 ([0-9a-f]{%d})" % (FORMAT_NAME.encode(), _DIGEST_LENGTH)
)
_LONGEST_SEAL = 128


def empty_seal(version: int) -> bytes:
    """The comment that the archive is written with; the digest takes the place of the zeros."""
    return f"{FORMAT_NAME} format {version} sha256 {'0' * _DIGEST_LENGTH}".encode("ascii")


@dataclass(frozen=True)
class Seal:
    """What the end of a file says: the format's number, and the digest as hexadecimal digits."""

    format_version: int
    digest: str


def read_seal(file: BinaryIO) -> Seal | None:
    """Read the end of an open file; None if it does not end with a seal.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _LONGEST_SEAL))
    tail = file.read(_LONGEST_SEAL)
    matches = list(_SEAL.finditer(tail))
    if not matches or matches[-1].end() != len(tail):
        return None
    return Seal(int(matches[-1][1]), matches[-1][2].decode("ascii"))


def digest_of_sealed(file: BinaryIO) -> str:
    """SHA-256 of every byte of an open file but the last 64, as hexadecimal digits.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    remaining = file.seek(0, os.SEEK_END) - _DIGEST_LENGTH
    file.seek(0)
    digest = hashlib.sha256()
    while remaining > 0:
        chunk = file.read(min(_CHUNK_BYTES, remaining))
        if not chunk:
            raise OSError("the file became shorter while it was read")
        digest.update(chunk)
        remaining -= len(chunk)
    return digest.hexdigest()


def write_seal(file: BinaryIO) -> None:
    """Put the digest in the place of the zeros that end the file.

    Raises
    ------
    OSError
        The file cannot be read or written.
    """
    digest = digest_of_sealed(file)
    file.seek(-_DIGEST_LENGTH, os.SEEK_END)
    file.write(digest.encode("ascii"))
