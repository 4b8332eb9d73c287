"""What must be true of a tree before it is released, and what is left to do then.

    python scripts/release.py check   # one line for each thing that is missing; exit code 1 then
    python scripts/release.py next    # the commands that release what was checked
    python scripts/release.py notes   # the section of this version in CHANGELOG.md
    python scripts/release.py tag v0.1.0   # whether a tag belongs to this version, for CI

Nothing is tagged or sent from here: both are for a person to do.
"""

import argparse
import datetime
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import tvm_ext

ROOT = Path(__file__).resolve().parents[1]
BRANCH = "main"

_HEADING = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<date>\S+))?$", re.MULTILINE)
_LINK = re.compile(r"^\[[^\]]+\]: \S+$", re.MULTILINE)
# A release has three numbers; all else is a version of a tree under way.
_RELEASED = re.compile(r"\d+\.\d+\.\d+")


class ReleaseError(Exception):
    """The tree cannot be released; the message says what to do."""


def section_of(changelog: str, name: str) -> tuple[str | None, str] | None:
    """The date and the text of the section ``name`` of a changelog; None where there is none."""
    headings = list(_HEADING.finditer(changelog))
    for position, heading in enumerate(headings):
        if heading["name"] == name:
            last = position + 1 == len(headings)
            end = len(changelog) if last else headings[position + 1].start()
            return heading["date"], _LINK.sub("", changelog[heading.end() : end]).strip()
    return None


def changelog_problems(changelog: str, version: str) -> list[str]:
    """What the changelog lacks for a release of ``version``, a line each."""
    found = section_of(changelog, version)
    wanted = f"'## [{version}] - YYYY-MM-DD'"
    if found is None:
        return [f"CHANGELOG.md has no section of {version}; expected {wanted}: write it"]
    date, text = found
    problems = []
    if not _is_date(date):
        problems.append(f"CHANGELOG.md dates {version} with {date!r}; expected {wanted}")
    if not text:
        problems.append(f"CHANGELOG.md says nothing of {version}; expected its changes: add them")
    waiting = section_of(changelog, "Unreleased")
    if waiting is not None and waiting[1]:
        problems.append(
            f"CHANGELOG.md has changes under [Unreleased]; expected none in a release: move them "
            f"to {version}, or give the version another number"
        )
    return problems


def tree_problems(root: Path, version: str) -> list[str]:
    """What git says against a release of ``version`` from the tree at ``root``, a line each."""
    problems = []
    if not _RELEASED.fullmatch(version):
        problems.append(
            f"the version is {version}; expected three numbers, as 0.1.0: change "
            "tvm_ext/__init__.py"
        )
    changed = _git(root, "status", "--porcelain").splitlines()
    if changed:
        problems.append(
            f"not all is committed, {changed[0]!r} is the first of {len(changed)}; expected a "
            "clean tree: commit the files or remove them"
        )
    branch = _git(root, "branch", "--show-current")
    if branch != BRANCH:
        problems.append(
            f"the branch is '{branch}'; expected '{BRANCH}': release from there (git switch "
            f"{BRANCH})"
        )
    if _git(root, "tag", "--list", tag_of(version)):
        problems.append(
            f"{tag_of(version)} is tagged already; expected a new version: raise the one in "
            "tvm_ext/__init__.py"
        )
    return problems


def tag_of(version: str) -> str:
    """The name of the tag that releases a version."""
    return f"v{version}"


def next_commands(version: str) -> list[str]:
    """What releases a checked tree; CI builds and publishes what the tag names."""
    tag = tag_of(version)
    return [f"git tag --annotate {tag} --message 'Release {version}'", f"git push origin {tag}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one of the commands; exit code 1 when the tree or the tag is not fit for a release."""
    options = _parser().parse_args(arguments)
    try:
        problems = _run(options)
    except (ReleaseError, OSError) as error:
        problems = [str(error)]
    for problem in problems:
        print(f"release.py: error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _run(options: argparse.Namespace) -> list[str]:
    version = tvm_ext.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if options.command == "tag":
        if options.tag != tag_of(version):
            return [f"the tag is '{options.tag}'; expected '{tag_of(version)}', the version here"]
        return changelog_problems(changelog, version)
    if options.command == "notes":
        found = section_of(changelog, version)
        if found is None:
            return changelog_problems(changelog, version)
        print(found[1])
    elif options.command == "next":
        built = sorted(path.name for path in (ROOT / "dist").glob("*"))
        print(f"tvm-ext {version} is built: {', '.join(built) or 'nothing yet (make dist)'}.")
        print("Tag it and push the tag; CI then builds it again, and publishes that:\n")
        print("\n".join(f"    {command}" for command in next_commands(version)))
    else:
        return tree_problems(ROOT, version) + changelog_problems(changelog, version)
    return []


def _is_date(text: str | None) -> bool:
    try:
        return datetime.date.fromisoformat(text or "").isoformat() == text
    except ValueError:
        return False


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ReleaseError(
            f"git {arguments[0]} fails: {done.stderr.strip()}; expected a clone of the project: "
            "release from one"
        )
    return done.stdout.strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="release.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("check", "next", "notes"):
        commands.add_parser(name)
    commands.add_parser("tag").add_argument("tag")
    return parser


if __name__ == "__main__":
    sys.exit(main())
