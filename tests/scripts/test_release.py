"""What is refused as a release, and the one place of the version."""

import importlib.util
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import tvm_ext

SCRIPTS = Path(__file__).parents[2] / "scripts"
CHANGELOG = """# Changelog

## [Unreleased]

## [1.2.0] - 2026-11-29

### Added

- Something.

## [1.1.0] - 2026-10-01

- Something else.

[1.1.0]: https://example.org/1.1.0
"""


def script(name):
    """A module of ``scripts``, which is no package."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = script("release")
try_dist = script("try_dist")


@pytest.fixture
def tree(tmp_path) -> Path:
    """A repository with one commit on main."""
    for command in (
        ["init", "--quiet", "--initial-branch=main"],
        ["config", "user.email", "tests@example.org"],
        ["config", "user.name", "Tests"],
        ["commit", "--quiet", "--allow-empty", "--message", "First"],
    ):
        git(tmp_path, *command)
    return tmp_path


def git(folder, *command):
    subprocess.run(["git", "-C", str(folder), *command], check=True)


def test_a_clean_tree_on_main_can_be_released(tree):
    assert release.tree_problems(tree, "1.2.0") == []


@pytest.mark.parametrize(
    ("command", "version", "expected"),
    [
        (["switch", "--quiet", "--create", "work"], "1.2.0", "the branch is 'work'"),
        (["tag", "v1.2.0"], "1.2.0", "v1.2.0 is tagged already"),
        (["status", "--short"], "1.2.0.dev0", "expected three numbers"),
    ],
)
def test_what_git_says_against_a_release(tree, command, version, expected):
    git(tree, *command)
    (problem,) = release.tree_problems(tree, version)
    assert expected in problem


def test_a_file_that_is_not_committed_stops_a_release(tree):
    (tree / "new.py").write_text("")
    (problem,) = release.tree_problems(tree, "1.2.0")
    assert problem.startswith("not all is committed, '?? new.py' is the first of 1;")


def test_a_folder_without_git_is_refused_in_one_line(tmp_path):
    with pytest.raises(release.ReleaseError, match="expected a clone of the project"):
        release.tree_problems(tmp_path, "1.2.0")


def test_sections_end_where_the_next_begins():
    assert release.section_of(CHANGELOG, "1.2.0") == ("2026-11-29", "### Added\n\n- Something.")
    assert release.section_of(CHANGELOG, "1.1.0") == ("2026-10-01", "- Something else.")
    assert release.section_of(CHANGELOG, "Unreleased") == (None, "")
    assert release.section_of(CHANGELOG, "1.0.0") is None


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", []),
        ("[1.2.0]", "[1.3.0]", ["has no section of 1.2.0"]),
        (" - 2026-11-29", "", ["dates 1.2.0 with None"]),
        ("2026-11-29", "2026-11-31", ["dates 1.2.0 with '2026-11-31'"]),
        ("### Added\n\n- Something.", "", ["says nothing of 1.2.0"]),
        ("[Unreleased]\n", "[Unreleased]\n\n- More.\n", ["changes under [Unreleased]"]),
    ],
)
def test_what_a_changelog_must_have(old, new, expected):
    problems = release.changelog_problems(CHANGELOG.replace(old, new, 1), "1.2.0")
    assert len(problems) == len(expected)
    assert all(text in problem for text, problem in zip(expected, problems, strict=True))


def test_the_changelog_has_the_form_that_a_release_needs():
    text = (SCRIPTS.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    assert release.section_of(text, "Unreleased") is not None
    assert release.section_of(text, tvm_ext.__version__) is not None


def test_a_tag_belongs_to_the_version(capsys):
    assert release.main(["tag", "v99.0.0"]) == 1
    wanted = f"expected 'v{tvm_ext.__version__}', the version here"
    assert wanted in capsys.readouterr().err


def test_the_notes_and_the_commands_that_are_left(capsys):
    assert release.main(["notes"]) == 0
    assert "### Added" in capsys.readouterr().out
    assert release.main(["next"]) == 0
    assert f"git push origin v{tvm_ext.__version__}" in capsys.readouterr().out


def test_the_version_stands_in_one_place():
    """The build reads it from the package, and so does what is installed."""
    text = (SCRIPTS.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert 'version = { attr = "tvm_ext.__version__" }' in text
    assert f'"{tvm_ext.__version__}"' not in text
    assert metadata.version("tvm-ext") == tvm_ext.__version__


def test_distributions_of_another_version_are_refused(tmp_path, capsys):
    (tmp_path / "tvm_ext-0.0.1-py3-none-any.whl").write_bytes(b"")
    assert try_dist.main([str(tmp_path)]) == 1
    assert "run 'make dist'" in capsys.readouterr().err


def test_the_tried_program_is_one_that_python_reads():
    compile(try_dist._PROGRAM, "program", "exec")
    assert sys.version_info >= (3, 10)


def test_the_citation_names_the_version_and_its_date():
    citation = (SCRIPTS.parent / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (SCRIPTS.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    date, _ = release.section_of(changelog, tvm_ext.__version__)
    assert f"\nversion: {tvm_ext.__version__}\n" in citation
    assert f'\ndate-released: "{date}"\n' in citation
