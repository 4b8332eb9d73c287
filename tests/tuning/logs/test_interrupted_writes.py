"""Writing the two files anew: wherever it stops, each record points at its own workload."""

from contextlib import contextmanager

import pytest
from record_folders import (
    OTHER_TARGET,
    hash_of,
    insert_line,
    lines_of,
    opened,
    record,
    stored,
    write_folder,
    write_lines,
)

from tvm_ext.configs.atomic_file import OutputPathError, write_text
from tvm_ext.tuning.logs import database_files
from tvm_ext.tuning.logs.database_files import RECORDS, WORKLOADS, read_database, write_database
from tvm_ext.tuning.logs.record_folder import repair_folder

# Each kernel has times of its own, so that a record says which kernel it is of.
BEST = {8: 8e-6, 4: 4e-6, 6: 6e-6}


# When lines move.
WRITES = 6


class PowerCut(Exception):
    pass


@contextmanager
def power_cut(done):
    """Lets a number of files be written; the next one ends the block."""
    left = iter(range(done))

    def write(path, text):
        if next(left, None) is None:
            raise PowerCut
        write_text(path, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database_files, "write_text", write)
        with pytest.raises(PowerCut):
            yield


def pairs(folder):
    """Kernel and time of each record that can be read."""
    files = read_database(folder)
    return {(one.workload, one.seconds) for one in files.records}


def all_pairs(sizes):
    return {(hash_of(size), seconds) for size in sizes for seconds in (3e-6, BEST[size])}


@pytest.mark.extended
@pytest.mark.parametrize("sizes", [(4, 6), (6,), (6, 4, 8), ()])
def test_lines_that_move(tmp_path, sizes):
    """Kernels leave, or change places: the rest is never lost and never another's."""
    before, after = all_pairs((8, 4, 6)), all_pairs(sizes)
    for done in range(WRITES):
        folder = write_folder(tmp_path / str(done), (8, 4, 6), best=BEST)
        kept = [one for one in read_database(folder).records if one.workload in map(hash_of, sizes)]
        with power_cut(done):
            write_database(folder, map(stored, sizes), kept)
        assert after <= pairs(folder) <= before
        assert len(opened(folder)) >= len(after)
        write_database(folder, map(stored, sizes), kept)
        assert pairs(folder) == after
        assert len(lines_of(folder, WORKLOADS)) == len(sizes)


def test_more_workloads_than_before(tmp_path):
    folder = write_folder(tmp_path, (8, 4), best=BEST)
    kept = [*read_database(folder).records, record(6, BEST[6])]
    with power_cut(1):
        write_database(folder, map(stored, (8, 4, 6)), kept)
    assert pairs(folder) == all_pairs((8, 4))
    write_database(folder, map(stored, (8, 4, 6)), kept)
    assert pairs(folder) == all_pairs((8, 4)) | {(hash_of(6), BEST[6])}


@pytest.mark.extended
def test_a_longer_list_than_before_without_the_first(tmp_path):
    kept = [record(4, BEST[4], OTHER_TARGET), record(6, BEST[6])]
    known = {(hash_of(size), BEST[size]) for size in (4, 6)}
    for done in range(WRITES):
        folder = write_folder(tmp_path / str(done), (8,), best=BEST)
        with power_cut(done):
            write_database(folder, map(stored, (4, 6)), kept)
        assert pairs(folder) == (known if done > 1 else all_pairs((8,)))
        opened(folder)


@pytest.mark.extended
def test_an_interrupted_repair_can_be_repeated(tmp_path):
    for done in range(WRITES):
        folder = write_folder(tmp_path / str(done), (8, 4, 6), best=BEST)
        lines = lines_of(folder, WORKLOADS)
        write_lines(folder, WORKLOADS, ["damaged", *lines[1:]])
        insert_line(folder, RECORDS, 4, "damaged")
        with power_cut(done):
            repair_folder(folder)
        assert pairs(folder) == all_pairs((4, 6))
        repair_folder(folder)
        assert pairs(folder) == all_pairs((4, 6))
        assert len(opened(folder)) == 4


def test_records_of_workloads_that_are_not_given_are_the_callers_mistake(tmp_path):
    folder = write_folder(tmp_path)
    before = [lines_of(folder, name) for name in (WORKLOADS, RECORDS)]
    with pytest.raises(KeyError):
        write_database(folder, [stored(4)], [record(8)])
    assert [lines_of(folder, name) for name in (WORKLOADS, RECORDS)] == before


def test_a_folder_that_is_missing_is_an_output_path_error(tmp_path):
    with pytest.raises(OutputPathError):
        write_database(tmp_path / "missing", [stored(8)], [])
