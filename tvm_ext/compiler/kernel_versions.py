"""Reads from a kernel's final code which versions of it a run chooses from by its sizes.

Nothing in the code counts: the conditions are formulas of the sizes, and whoever knows those of a
run knows which versions ran.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx

from tvm_ext.compiler.kernel_work import formula, sizes_of
from tvm_ext.report.formulas import negated
from tvm_ext.report.records import VersionRecord
from tvm_ext.tir_schedules.analysis.buffer_access import nodes, static_extent
from tvm_ext.tir_schedules.cpu.thread_choice import CONDITION

# Choices of a kernel, and characters of a condition, that a report holds, and that a name does.
_MOST_CHOICES, _LONGEST_CONDITION, _LONGEST_SHOWN = 8, 400, 40


def kernel_versions(
    func: tirx.PrimFunc, names: Mapping[tuple[int, int], str]
) -> list[list[VersionRecord]]:
    """The choices that a call makes by its sizes, each with the versions that it chooses from.

    ``names`` are those of the sizes, by argument and axis as `sizes_of` gives them. Conditions of
    anything else, of a loop's turn say, are not choices of a call.
    """
    sizes = {size: names[place] for size, place in sizes_of(func).items() if place in names}
    reader = _Reader(sizes)
    reader.walk(func.body, ())
    named = [_named(choice) for choice in reader.choices]
    return [choice for choice in named if len(choice) > 1][:_MOST_CHOICES]


@dataclass(frozen=True)
class _Version:
    """Code that runs where all of ``conditions`` hold; ``threads`` as far as these decide it."""

    code: Any
    conditions: tuple[str, ...]
    threads: bool | None = None


class _Reader:
    """Collects the choices in a statement."""

    def __init__(self, names: Mapping[tirx.Var, str]) -> None:
        self._names = names
        self.choices: list[list[_Version]] = []

    def walk(self, statement: Any, path: tuple[str, ...]) -> None:
        """Reads what runs where the conditions in ``path`` hold."""
        if self._condition(statement):
            found: list[_Version] = []
            self.choices.append(found)
            self._versions(statement, path, found)
            return
        match statement:
            case tirx.SeqStmt():
                for one in statement.seq:
                    self.walk(one, path)
            case tirx.For() | tirx.AttrStmt():
                self.walk(statement.body, path)
            case s_tir.SBlockRealize():
                self.walk(statement.block.body, path)
            case tirx.IfThenElse() if statement.else_case is None:
                self.walk(statement.then_case, path)

    def _versions(self, statement: Any, path: tuple[str, ...], found: list[_Version]) -> None:
        """Adds the versions of a choice; one between two of them is a choice of three."""
        condition = self._condition(statement)
        if not condition:
            found.append(_Version(statement, path))
            self.walk(statement, path)
            return
        there, not_there = (*path, condition), (*path, negated(condition))
        if isinstance(statement, tirx.AttrStmt):
            found.append(_Version(statement.body, there, threads=True))
            found.append(_Version(statement.body, not_there, threads=False))
            self.walk(statement.body, path)
        else:
            self._versions(statement.then_case, there, found)
            self._versions(statement.else_case, not_there, found)

    def _condition(self, statement: Any) -> str:
        """What a call's sizes decide here; empty where it is not they."""
        match statement:
            case tirx.AttrStmt(attr_key=key) if key == CONDITION:
                found = formula(statement.value, self._names)
            case tirx.IfThenElse() if statement.else_case is not None:
                found = formula(statement.condition, self._names)
            case _:
                return ""
        return found if len(found) <= _LONGEST_CONDITION else ""


def _named(choice: list[_Version]) -> list[VersionRecord]:
    """The versions with names that say in what they differ."""
    threads, vectors = [_threads(one) for one in choice], [_vectors(one) for one in choice]
    told = [words for words in (vectors, threads) if len(set(words)) > 1]
    names = [", ".join(words) for words in zip(*told, strict=True)] or [""] * len(choice)
    found = []
    for name, version in zip(names, choice, strict=True):
        alike = [one for own, one in zip(names, choice, strict=True) if own == name]
        where = _difference(version, alike)
        condition = " and ".join(f"({one})" for one in version.conditions)
        found.append(VersionRecord(" where ".join(filter(None, (name, where))), condition))
    return found


def _difference(version: _Version, alike: list[_Version]) -> str:
    """The first condition of a version that is not one of all that are ``alike``."""
    shared = set.intersection(*(set(one.conditions) for one in alike))
    found = next((one for one in version.conditions if one not in shared), "")
    return found if len(found) <= _LONGEST_SHOWN else f"{found[: _LONGEST_SHOWN - 3]}..."


def _vectors(version: _Version) -> str:
    loops = nodes(version.code, tirx.For)
    vectors = [one for one in loops if tirx.ForKind(one.kind) == tirx.ForKind.VECTORIZED]
    lanes = max((static_extent(one.extent) or 0 for one in vectors), default=0)
    return f"vectors of {lanes}" if lanes > 1 else "no vectors"


def _threads(version: _Version) -> str:
    loops = nodes(version.code, tirx.For)
    parallel = [tirx.ForKind(one.kind) == tirx.ForKind.PARALLEL for one in loops]
    if version.threads is False or not any(parallel):
        return "one thread"
    # Loops come outermost first.
    return "threads" if parallel[0] else "threads within a loop"
