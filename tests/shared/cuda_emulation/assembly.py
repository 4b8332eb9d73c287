"""Inline assembly of CUDA code as calls of C++ functions that do what the PTX ISA says.

``asm volatile("ptx" : outputs : inputs);`` becomes a block with as many lines, in which every
instruction is one statement. Instructions are looked up in ``instructions.py``; one that is not
there is an error, never skipped.
"""

import re
from dataclasses import dataclass

from cuda_emulation.instructions import translated_instruction


class AssemblyError(Exception):
    """Inline assembly that the emulator does not know: the text is in the message."""


_START = re.compile(r"\b(?:asm|__asm__)\s*(?:(?:volatile|__volatile__)\s*)?\(")
_OPERAND = re.compile(r'(?:\[(\w+)\]\s*)?"([^"]*)"\s*\(')


@dataclass(frozen=True)
class Operand:
    """What stands for %N: the C++ name, and whether the instruction writes it."""

    constraint: str
    expression: str


def without_assembly(source: str) -> str:
    """The source with every ``asm`` statement replaced, lines in place."""
    parts, at, line, counted = [], 0, 1, 0
    for number, match in enumerate(_START.finditer(source)):
        if match.start() < at:
            continue
        end = _closing(source, match.end() - 1)
        statement = source[match.end() : end]
        semicolon = source.index(";", end)
        parts.append(source[at : match.start()])
        line += source.count("\n", counted, match.start())
        counted = match.start()
        parts.append(_translated(statement, number, line))
        parts.append("\n" * source.count("\n", match.start(), semicolon))
        at = semicolon + 1
    return "".join([*parts, source[at:]])


def _closing(text: str, opening: int) -> int:
    """Where the parenthesis at ``opening`` is closed."""
    depth, at, quoted = 0, opening, False
    while True:
        char = text[at]
        if quoted:
            at += char == "\\"
            quoted = char != '"'
        elif char == '"':
            quoted = True
        elif char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
            if depth == 0:
                return at
        at += 1


def _translated(statement: str, number: int, line: int) -> str:
    sections = _sections(statement)
    sections += [""] * (4 - len(sections))
    text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', sections[0]))
    text = text.encode().decode("unicode_escape")
    operands = [*_operands(sections[1]), *_operands(sections[2])]
    lines = [_bound(operand, at) for at, operand in enumerate(operands)]
    lines += _statements(text, number, line)
    return "{ " + " ".join(lines) + " }"


def _sections(statement: str) -> list[str]:
    """Template, outputs, inputs, clobbers: split at colons outside of all brackets."""
    sections, depth, quoted, start, at = [], 0, False, 0, 0
    while at < len(statement):
        char = statement[at]
        if quoted:
            at += char == "\\"
            quoted = char != '"'
        elif char == '"':
            quoted = True
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == ":" and depth == 0:
            sections.append(statement[start:at])
            start = at + 1
        at += 1
    return [*sections, statement[start:]]


def _operands(section: str) -> list[Operand]:
    found, at = [], 0
    while match := _OPERAND.search(section, at):
        end = _closing(section, match.end() - 1)
        found.append(Operand(match.group(2), section[match.end() : end]))
        at = end + 1
    return found


def _bound(operand: Operand, at: int) -> str:
    """A C++ name for an operand, so that its expression is evaluated once."""
    if operand.constraint.startswith(("=", "+")):
        return f"auto& _{at} = {operand.expression};"
    if operand.constraint in ("n", "i"):
        return f"constexpr auto _{at} = {operand.expression};"
    return f"const auto _{at} = {operand.expression};"


_LABEL = re.compile(r"\s*([A-Za-z_$][\w$]*|%=\w*|\w*%=)\s*:(?!:)")
_GUARD = re.compile(r"@(!?)\s*([%\w$]+)\s+")


def _statements(text: str, number: int, line: int) -> list[str]:
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"%%?([A-Za-z_]\w*)", r"\1", text.replace("%=", str(number)))
    text = re.sub(r"%(\d+)", r"_\1", text)
    lines, at = [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        if text[at] in "{}":
            lines.append(text[at])
            at += 1
        elif label := _LABEL.match(text, at):
            lines.append(f"emu_{number}_{label.group(1)}:;")
            at = label.end()
        else:
            end = text.find(";", at)
            end = len(text) if end < 0 else end
            lines.append(_statement(text[at:end].strip(), number, line))
            at = end + 1
    return lines


def _statement(text: str, number: int, line: int) -> str:
    guard = _GUARD.match(text)
    if guard:
        condition = f"{guard.group(1)}{guard.group(2)}"
        return f"if ({condition}) {{ {_statement(text[guard.end() :], number, line)} }}"
    text = re.sub(r"^\.reg\s+", ".reg", text)
    opcode, _, rest = text.partition(" ")
    if "{" in opcode:  # an opcode directly followed by its vector
        opcode, brace, tail = text.partition("{")
        rest = brace + tail
    if opcode in ("bra", "bra.uni"):
        return f"goto emu_{number}_{rest.strip()};"
    found = translated_instruction(opcode.strip(), split_operands(rest), line)
    if found is None:
        raise AssemblyError(f"line {line}: the emulator does not know {text!r}")
    return found


def split_operands(text: str) -> list[str]:
    """Operands, split at commas outside of brackets."""
    found, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += char in "{[("
        depth -= char in "}])"
        if char == "," and depth == 0:
            found.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*found, last] if last else found
