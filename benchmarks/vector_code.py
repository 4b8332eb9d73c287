"""The kernels that take the most time of a run, and what vector instructions their code has.

Times are of a profile, instructions are read from the disassembly of the program (``objdump`` of
binutils, x86-64 only): those of 256 and 512 bits, those of 128, and arithmetic of single floats.

    python benchmarks/vector_code.py model.onnx --size N=8
    python benchmarks/vector_code.py *.onnx --only-without
"""

import argparse
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import tvm_ext
from tvm_ext.check.inputs import random_inputs

_FUNCTION = re.compile(r"^([0-9a-f]+) <(.+)>:$")
_SYMBOL = re.compile(r"^([0-9a-f]+) .* (\S+)$")
_REFERENCE = re.compile(r"<([^+@>]+)(?:@plt)?(?:\+0x[0-9a-f]+)?>")
_KINDS = {
    "wide": re.compile(r"%[yz]mm"),
    "narrow": re.compile(r"\tv?\w+(?:p[sd]|dqu|[bwdq])\s.*%xmm"),
    "scalar": re.compile(r"\tv?(?:add|sub|mul|div|max|min|sqrt|fn?m(?:add|sub)\d*)s[sd]\s"),
}
# Code that every program has, whatever its kernels are.
_SHARED = ("__tvm_set_raised", "__TVM", "TVM", "tvm_ext_")


def _disassembly(compiled: tvm_ext.CompiledModel) -> dict[str, list[str]]:
    """The instructions of each function of a program."""
    with tempfile.TemporaryDirectory() as folder:
        compiled.save(Path(folder) / "model.tvmx")
        with zipfile.ZipFile(Path(folder) / "model.tvmx") as archive:
            library = archive.extract("model.so", folder)
        code, symbols = (
            subprocess.run(
                ["objdump", *options, library], capture_output=True, text=True, check=True
            )
            for options in (["-d", "--no-show-raw-insn"], ["-T"])
        )
    found: dict[str, list[str]] = {}
    at: dict[int, list[str]] = {}
    lines: list[str] = []
    for line in code.stdout.splitlines():
        name = _FUNCTION.match(line)
        if name is not None:
            lines = found.setdefault(name[2], [])
            at[int(name[1], 16)] = lines
        else:
            lines.append(line)
    # Equal kernels are one function with several names, of which the disassembly has one.
    for symbol in filter(None, map(_SYMBOL.match, symbols.stdout.splitlines())):
        found.setdefault(symbol[2], at.get(int(symbol[1], 16), []))
    return found


def _counts(functions: Mapping[str, list[str]], kernel: str) -> dict[str, int]:
    """Instructions by kind, of a kernel and of all functions that it refers to."""
    waiting, seen = [f"__tvm_ffi_{kernel}"], set()
    total = dict.fromkeys(_KINDS, 0)
    while waiting:
        name = waiting.pop()
        if name in seen or name not in functions or name.startswith(_SHARED):
            continue
        seen.add(name)
        for line in functions[name]:
            for kind, pattern in _KINDS.items():
                total[kind] += bool(pattern.search(line))
            waiting += _REFERENCE.findall(line)
    return total


def _table(path: Path, sizes: Mapping[str, int], count: int, only_without: bool) -> None:
    compiled = tvm_ext.compile(path)
    names = {size for spec in compiled.inputs for size in spec.shape}
    inputs = random_inputs(
        compiled.inputs, sizes={name: n for name, n in sizes.items() if name in names}
    )
    kernels = compiled.profile(inputs).kernels
    functions = _disassembly(compiled)
    total = sum(kernel.microseconds for kernel in kernels)
    dearest = sorted(kernels, key=lambda kernel: -kernel.microseconds)[:count]
    for kernel in dearest:
        found = _counts(functions, kernel.kernel)
        if only_without and found["wide"] + found["narrow"]:
            continue
        figures = " | ".join(str(found[kind]) for kind in _KINDS)
        share = 100 * kernel.microseconds / total
        print(f"| {path.stem} | {kernel.kernel} | {kernel.schedule} | {share:.1f} | {figures} |")
    shown = 100 * sum(kernel.microseconds for kernel in dearest) / total
    print(
        f"| {path.stem} | these {len(dearest)} of {len(kernels)} | | {shown:.1f} | | | |",
        flush=True,
    )


def _size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    return name, int(number)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path, help="ONNX files")
    parser.add_argument(
        "--size", action="append", type=_size, default=[], help="DIM=N of models that have it"
    )
    parser.add_argument("--count", type=int, default=20, help="kernels of each model")
    parser.add_argument(
        "--only-without", action="store_true", help="only kernels without a vector instruction"
    )
    given = parser.parse_args()
    print("| model | kernel | schedule | % of time | wide | narrow | scalar |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    for path in given.models:
        _table(path, dict(given.size), given.count, given.only_without)


if __name__ == "__main__":
    main()
