"""``tvm-ext logs``: what each subcommand prints, writes, and refuses."""

import csv
import json
from functools import partial

import commands
import pytest
from record_folders import (
    contents,
    failed_trial,
    hash_of,
    insert_line,
    lines_of,
    opened,
    record,
    split_trace,
    stored,
    trial,
    write_folder,
)

from tvm_ext.tuning.candidate import plain_json
from tvm_ext.tuning.logs.database_files import RECORDS, write_database
from tvm_ext.tuning.logs.lines import locked
from tvm_ext.tuning.logs.trial_log import TRIALS, append_trial

COMMANDS = ("show", "best", "stats", "diff", "verify", "export", "merge", "prune", "repair")


as_json = partial(commands.as_json, "logs")
invoke = partial(commands.invoke, "logs")
refused = partial(commands.refused, "logs")
succeed = partial(commands.succeed, "logs")


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "records", best={8: 1.25e-6, 4: 2e-6})


def words(text):
    """A table's text without its layout."""
    return " ".join(text.split())


def test_help():
    text = succeed()
    for command in COMMANDS:
        assert command in text
        assert f"Example: tvm-ext logs {command}" in succeed(command, "--help")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("diff",)])
def test_a_folder_without_records_is_refused(tmp_path, command):
    options = {"export": ["-o", tmp_path / "t.csv"], "merge": ["-o", tmp_path / "both"]}
    (tmp_path / "empty").mkdir()
    extra = options.get(command, [])
    assert "it does not exist" in refused(command, tmp_path / "missing", *extra)
    assert "expected at least one of" in refused(command, tmp_path / "empty", *extra)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert list((tmp_path / "empty").iterdir()) == []


def test_diff_refuses_either_folder(folder, tmp_path):
    assert "does not exist" in refused("diff", folder, tmp_path / "missing")
    assert "does not exist" in refused("diff", tmp_path / "missing", folder)


def test_show(folder):
    text = words(succeed("show", folder))
    assert "Kernels on x86-64-v3, 2 cores" in text
    assert "MatMul_8 3.00 µs 1.25 µs 2.40x 4 1 1.0 % yes register tile" in text
    assert "matmul8" not in text
    assert f"MatMul_8 matmul8 {hash_of(8)} register tile (rows=4," in words(
        succeed("show", folder, "-v")
    )
    assert "modelled" not in text
    first, second = as_json("show", folder)
    assert (first["name"], second["name"]) == ("matmul8", "matmul4")
    assert first["measured"]["best_seconds"] == 1.25e-6
    assert first["measured"]["is_confirmed"]
    assert first["statuses"] == {"ok": 3, "wrong": 1}


def test_show_marks_modelled_times(tmp_path):
    append_trial(tmp_path, trial(8, status="modelled", seconds=7e-9))
    text = words(succeed("show", tmp_path))
    assert "7.00 ns" in text
    assert "(modelled)" in text
    (found,) = as_json("show", tmp_path)
    assert found["measured"]["best_seconds"] is None
    assert found["modelled"]["best_seconds"] == 7e-9


@pytest.mark.extended
def test_best_and_stats_mark_modelled_times(tmp_path):
    trace = plain_json(split_trace(8).as_json())
    append_trial(tmp_path, trial(8, status="modelled", seconds=7e-9, trace=trace))
    write_database(tmp_path, [stored(8)], [record(8, 7e-9)])
    assert "7.00 ns (modelled)" in words(succeed("best", tmp_path))
    (found,) = as_json("best", tmp_path)
    assert found["is_modelled"] is True
    text = words(succeed("stats", tmp_path))
    assert "Trials 1 (1 modelled)" in text
    assert "Records 1 (1 modelled)" in text


def test_merge_says_which_records_a_measurement_made_worthless(folder, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    trace = plain_json(split_trace(8).as_json())
    append_trial(model, trial(8, status="modelled", seconds=7e-9, trace=trace))
    write_database(model, [stored(8)], [record(8, 7e-9)])
    text = succeed("merge", folder, model, "--output", tmp_path / "both")
    assert "a model's times do not count beside measured ones: 1 record" in text
    assert "(modelled)" not in words(succeed("best", tmp_path / "both"))


def test_show_filters(folder):
    assert [one["name"] for one in as_json("show", folder, "--kernel", "matmul4")] == ["matmul4"]
    assert len(as_json("show", folder, "--target", "v3, 2 cores")) == 2
    assert "has no records of target 'x86-64'" in refused("show", folder, "--target", "x86-64")
    assert "expected one of 2 kernels" in refused("show", folder, "--kernel", "conv")


def test_names_from_files_do_not_reach_the_terminal_as_they_are(tmp_path):
    append_trial(tmp_path, trial(8, kernel_name="\x1b[31mred [bold]"))
    insert_line(tmp_path, TRIALS, 1, '{"format": "\\u001b[31m"}')
    result = invoke("show", tmp_path)
    assert "\x1b" not in result.output
    assert "[bold]" in words(invoke("show", tmp_path, "-v").stdout)


def test_bad_lines_are_named_on_stderr_and_stop_nothing(folder):
    for number in range(25):
        insert_line(folder, TRIALS, 1 + number, f"garbage {number}")
    insert_line(folder, RECORDS, 1, "[]")
    for command in ("show", "best", "stats"):
        result = invoke(command, folder, "--json")
        assert result.exit_code == 0
        lines = result.stderr.splitlines()
        assert lines[0].startswith(f"{folder / TRIALS}:1: not JSON")
        assert lines[-1] == "and 6 more"
        assert len(lines) == 21
        assert json.loads(result.stdout)


def test_best(folder):
    assert "MatMul_8 1.25 µs register tile MatMul_4" in words(succeed("best", folder))
    text = words(succeed("best", folder, "-v"))
    assert f"MatMul_8 matmul8 {hash_of(8)} register tile (rows=4," in text
    first, _ = as_json("best", folder)
    assert first["decisions"] == {"rows": 4, "columns": 2}
    assert first["seconds"] == 1.25e-6
    assert first["trace"] == json.loads(lines_of(folder, RECORDS)[1])[1][0]


def test_stats(folder):
    text = words(succeed("stats", folder))
    assert "Trials 8 (6 ok, 2 wrong)" in text
    assert "tvm 0.27.0" in text
    assert "session1" in text
    found = as_json("stats", folder)
    assert found["sessions"][0]["trials"] == 8
    assert found["spread"]["half"] == 0.01


def test_merge(folder, tmp_path):
    other = write_folder(tmp_path / "other", (4, 6))
    text = succeed("merge", folder, other, "--output", tmp_path / "both")
    assert "12 trials, 3 kernels, 7 records\nleft out as repeated: 4 trials, 1 record\n" in text
    assert len(opened(tmp_path / "both")) == 7
    found = as_json("merge", folder, other, "--output", other)
    assert (found["trials"], found["kernels"], found["records"]) == (12, 3, 7)
    assert "holds records already" in refused("merge", folder, "-o", tmp_path / "both")


def test_prune(folder):
    text = succeed("prune", folder, "--drop-failed")
    assert "matmul8 x86-64-v3, 2 cores 1" in words(text)
    assert "trials that ended as 'wrong': 2" in text
    assert "2 records and 2 trials went, 2 records and 6 trials stay" in text
    assert len(opened(folder)) == 2


@pytest.mark.extended
def test_prune_to_a_copy(folder, tmp_path):
    before = contents(folder)
    found = as_json("prune", folder, "--keep", 1, "--output", tmp_path / "small")
    assert [gone["records"] for gone in found["records_gone"]] == [1, 1]
    assert contents(folder) == before
    assert len(opened(tmp_path / "small")) == 2
    assert "--keep" in refused("prune", folder, "--keep", 0)


def test_repair(folder):
    insert_line(folder, RECORDS, 2, "garbage")
    text = succeed("repair", folder)
    assert f"{folder / RECORDS}:2: not JSON" in text
    assert "1 line moved to database_tuning_record.json.bad" in text
    assert len(opened(folder)) == 4
    assert "nothing to repair" in succeed("repair", folder)
    insert_line(folder, TRIALS, 1, "garbage")
    (found,) = as_json("repair", folder)
    assert (found["line"], found["moved_to"]) == (1, f"{folder / TRIALS}.bad")


def test_diff(folder, tmp_path):
    slower = write_folder(tmp_path / "slower", (8, 6), best=2e-6)
    text = words(succeed("diff", folder, slower))
    assert "MatMul_8 1.25 µs 2.00 µs +60.0 % 3.0 % slower" in text
    assert "1 slower, 1 only before, 1 only after" in text
    assert words(succeed("diff", folder, folder)) == "2 equal"
    assert "MatMul_4 2.00 µs 2.00 µs +0.0 % 3.0 % equal" in words(
        succeed("diff", folder, folder, "-v")
    )
    assert invoke("diff", folder, slower, "--fail-on-slower").exit_code == 1
    succeed("diff", slower, folder, "--fail-on-slower")
    assert [one["verdict"] for one in as_json("diff", slower, folder)] == [
        "faster",
        "only before",
        "only after",
    ]


@pytest.mark.extended
@pytest.mark.parametrize("name", ["t.csv", "t.json", "best/", "there"])
def test_export(folder, tmp_path, name):
    (tmp_path / "there").mkdir()
    text = succeed("export", folder, "--output", f"{tmp_path}/{name}")
    if name.endswith(".csv"):
        with (tmp_path / name).open(encoding="utf-8", newline="") as file:
            assert len(list(csv.DictReader(file))) == 8
    elif name.endswith(".json"):
        assert len(json.loads((tmp_path / name).read_text())) == 8
    else:
        assert "2 records" in text
        assert len(opened(tmp_path / name)) == 2


def test_export_refuses_other_forms(folder, tmp_path):
    assert "its ending names no format" in refused("export", folder, "-o", tmp_path / "t.xml")
    assert "does not exist" in refused("export", folder, "-o", tmp_path / "no" / "t.csv")


@pytest.mark.extended
@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("not for this machine", 0), ("wrong", 1)])
def test_verify_says_how_each_record_did(folder, monkeypatch, status, code):
    """The verification itself is tested with the library."""
    from tvm_ext.tuning.logs import verify

    def answer(records, machine, finish):
        assert machine.cores == 1
        (best, *_) = verify.best_schedules(records)
        yield verify.Verified(best, status, "as asked", 1e-6, 2e-6, 2.0)

    monkeypatch.setattr(verify, "verify_records", answer)
    result = invoke("verify", folder, "--threads", 1)
    assert result.exit_code == code
    assert f"1 {status}" in words(result.stdout)
    assert "2.00x" in result.stdout
    result = invoke("verify", folder, "--threads", 1, "--json")
    assert result.exit_code == code
    assert json.loads(result.stdout)[0]["status"] == status


def test_a_folder_that_is_written_to_is_not_changed(folder):
    append_trial(folder, failed_trial(8, "run", "c" * 16))
    with locked(folder):
        for command in ("prune", "repair"):
            assert "another session writes to" in refused(command, folder)
    assert len(opened(folder)) == 4
