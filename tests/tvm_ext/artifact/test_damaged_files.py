"""A damaged file is refused, whichever byte is hit, and never with anything but ArtifactError."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from thoroughness import DRAWS, some_of

from tvm_ext.artifact import TargetRecord, read_artifact, write_artifact
from tvm_ext.artifact.archive import write_seal
from tvm_ext.errors import ArtifactError
from tvm_ext.tensor_spec import TensorSpec


@pytest.fixture
def saved(tmp_path) -> Path:
    path = tmp_path / "model.tvmx"
    spec = TensorSpec("x", "float32", (1, "N"))
    write_artifact(
        path,
        library=bytes(range(64)),
        report_json="{}",
        model_name="m",
        inputs=[spec],
        outputs=[],
        target=TargetRecord(name="cpu", kind="llvm"),
    )
    return path


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(ArtifactError) as caught:
        read_artifact(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.extended
@pytest.mark.parametrize("mask", some_of([0x01, 0x80, 0xFF]))
def test_every_flipped_byte_is_noticed(saved, mask):
    content = saved.read_bytes()
    for offset in range(len(content)):
        damaged = bytearray(content)
        damaged[offset] ^= mask
        refusal(saved, bytes(damaged))


@pytest.mark.extended
def test_every_cut_is_noticed(saved):
    content = saved.read_bytes()
    for length in range(len(content)):
        refusal(saved, content[:length])
    assert "cut short" in refusal(saved, content[:-1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content + b"\0", "something was added at its end"),
        (lambda content: content + content, "checksum"),
        (lambda content: b"\0" + content, "checksum"),
        (lambda content: content[:100] + b"\0" + content[100:], "checksum"),
        (lambda content: content[:100] + content[101:], "checksum"),
        (lambda content: content.replace(bytes(range(64)), bytes(64)), "checksum"),
        (lambda content: content[-100:], "checksum"),
        (lambda content: bytes(len(content)), "not a saved model"),
    ],
)
def test_damage_is_named(saved, change: Callable[[bytes], bytes], words):
    assert words in refusal(saved, change(saved.read_bytes()))


def is_accepted(path: Path) -> bool:
    """Whether the file loads; anything but a refusal in one line fails the test."""
    message = ""
    try:
        read_artifact(path)
    except ArtifactError as error:
        message = str(error)
    assert "\n" not in message
    return not message


def sealed(path: Path, content: bytes) -> None:
    with path.open("w+b") as file:
        file.write(content)
        write_seal(file)


def test_wrong_archives_with_a_right_checksum_do_not_crash_the_reader(saved):
    """The checksum keeps damage out; behind it the parsers must hold up by themselves."""
    content = saved.read_bytes()
    accepted = 0
    offsets = some_of(range(len(content) - 64))
    for offset in offsets:
        damaged = bytearray(content)
        damaged[offset] ^= 0x41
        sealed(saved, bytes(damaged))
        accepted += is_accepted(saved)
    # Time stamps, permissions, names: what does not change a part's content.
    assert accepted < len(offsets) // 4


def test_random_archives_with_a_right_checksum_do_not_crash_the_reader(saved):
    content = saved.read_bytes()
    chance = random.Random(7)
    for _ in range(500 * DRAWS):
        damaged = bytearray(content)
        # The central directory and the end record are where sizes and offsets are.
        start = chance.choice([0, len(content) - 340])
        for _ in range(chance.randint(1, 12)):
            damaged[chance.randrange(start, len(content) - 110)] = chance.choice([0, 255, 80, 1])
        sealed(saved, bytes(damaged))
        is_accepted(saved)


def test_bytes_before_the_archive_are_noticed_with_a_right_checksum(saved):
    content = saved.read_bytes()
    # A copy of the first header in front: ZIP readers skip it, we do not.
    sealed(saved, content[:43] + content)
    assert "added at its start" in refusal(saved, saved.read_bytes())
