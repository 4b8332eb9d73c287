"""Files that grow by a line at a time."""

import os

import pytest

from tvm_ext.configs.atomic_file import OutputPathError
from tvm_ext.configs.errors import RecordsError, last_line
from tvm_ext.tuning.logs.lines import Problem, append_line, read_lines


def texts(path):
    return [text for _, text, _ in read_lines(path)]


def test_lines_are_added_at_the_end(tmp_path):
    path = tmp_path / "log"
    for text in ("one", "zwei ü", ""):
        append_line(path, text)
    assert path.read_bytes() == "one\nzwei ü\n\n".encode()
    assert list(read_lines(path)) == [(1, "one", True), (2, "zwei ü", True), (3, "", True)]


def test_a_cut_line_damages_no_other(tmp_path):
    path = tmp_path / "log"
    path.write_text("one\ntw")
    assert list(read_lines(path)) == [(1, "one", True), (2, "tw", False)]
    append_line(path, "three")
    assert list(read_lines(path)) == [(1, "one", True), (2, "tw", True), (3, "three", True)]


@pytest.mark.parametrize("before", ["", "\n", "cut", "whole\n"])
def test_the_line_is_one_of_its_own(tmp_path, before):
    path = tmp_path / "log"
    path.write_text(before)
    append_line(path, "new")
    assert texts(path) == [*before.splitlines(), "new"]


def test_it_is_on_the_disk_when_it_returns(tmp_path, monkeypatch):
    """And the file's content at that moment is the whole line."""
    path, synced = tmp_path / "log", []
    fsync = os.fsync

    def noted(descriptor):
        fsync(descriptor)
        synced.append(path.read_bytes())

    monkeypatch.setattr(os, "fsync", noted)
    append_line(path, "one")
    append_line(path, "two")
    assert synced == [b"one\n", b"one\ntwo\n"]


def test_a_missing_file_has_no_lines(tmp_path):
    assert texts(tmp_path / "missing") == []
    assert texts(tmp_path / "no folder" / "missing") == []


def test_line_breaks_of_other_systems(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"one\r\ntwo\r\n")
    assert texts(path) == ["one", "two"]


def test_other_bytes_are_replaced(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"o\xffe\nend\n")
    assert texts(path) == ["o\ufffde", "end"]


def test_what_cannot_be_read_or_written(tmp_path):
    with pytest.raises(RecordsError, match="cannot read"):
        texts(tmp_path)
    for path in (tmp_path, tmp_path / "no folder" / "log"):
        with pytest.raises(OutputPathError, match=r"cannot add to .*make room"):
            append_line(path, "one")


def test_a_full_disk(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputPathError, match="No space left on device"):
        append_line(tmp_path / "log", "one")


def test_texts_of_problems(tmp_path):
    assert str(Problem(tmp_path / "log", 3, "cut off")) == f"{tmp_path / 'log'}:3: cut off"
    assert str(Problem(tmp_path / "log", 0, "is gone")) == f"{tmp_path / 'log'}: is gone"


def test_the_end_of_an_error():
    assert last_line(ValueError("first\n  what is wrong \n\n")) == "what is wrong"
    assert last_line(ValueError("")) == "ValueError"
    assert len(last_line(ValueError("x" * 1000))) == 200
