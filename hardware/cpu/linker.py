"""Links programs into shared libraries, each with the thread pool that runs its parallel loops.

Linking is TVM's ``export_library`` with our own call of the compiler: TVM's takes ``$CXX`` for the
name of one program ("ccache g++" fails) and ends in a TypeError where there is no compiler.
"""

import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tvm_ext.configs.errors import ArtifactError

_THREAD_POOL = Path(__file__).with_name("thread_pool.c")

# Compilers of C first: those of C++ link a library that nothing here needs, in twice the time.
_COMPILERS = ("gcc", "clang", "cc", "g++", "clang++", "c++")


def find_compiler() -> tuple[str, ...]:
    """The command that links a shared library: ``$CXX``, ``$CC``, or a usual name on the path.

    Returns
    -------
    tuple[str, ...]
        Program and leading arguments.

    Raises
    ------
    ArtifactError
        There is no compiler, or the variable does not name a program.
    """
    for variable in ("CXX", "CC"):
        value = os.environ.get(variable, "").strip()
        if value:
            return _compiler_from_variable(variable, value)
    for name in _COMPILERS:
        program = shutil.which(name)
        if program is not None:
            return (program,)
    raise ArtifactError(
        "no C or C++ compiler found to link the model with; expected gcc, clang or g++ on the "
        "path: install one (Debian, Ubuntu: apt install gcc; without root: pip install ziglang and "
        "CXX='python -m ziglang cc'), or set CXX to its path"
    )


class Linker:
    """Calls the compiler in the way that ``export_library`` asks its ``fcompile`` to."""

    def __init__(self, compiler: tuple[str, ...]) -> None:
        self._compiler = compiler

    def __call__(self, output: str, objects: Sequence[str], options: Sequence[str] = ()) -> None:
        undefined = ("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()
        pool = Path(output).with_suffix(".thread_pool.o")
        pool.write_bytes(_thread_pool(self._compiler))
        linking = ("-shared", "-fPIC", "-pthread", *undefined, "-o", output)
        _run(self._compiler, *linking, *options, *objects, str(pool))

    def get_target_triple(self) -> str:
        """LLVM's name for the machine; TVM asks when the program has no kernel of its own."""
        return _run(self._compiler, "-dumpmachine").strip()


@functools.cache
def _thread_pool(compiler: tuple[str, ...]) -> bytes:
    """The object file, which takes as long to make as to link a small program."""
    with tempfile.TemporaryDirectory(prefix="tvmx-") as folder:
        made = Path(folder) / "thread_pool.o"
        language = ("-x", "c", "-std=gnu11", "-O1", "-fPIC", "-fvisibility=hidden", "-pthread")
        _run(compiler, *language, "-c", str(_THREAD_POOL), "-o", str(made))
        return made.read_bytes()


def _run(compiler: tuple[str, ...], *arguments: str) -> str:
    result = subprocess.run(
        [*compiler, *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if result.returncode != 0:
        # collect2 says last that the linker failed, which has said why.
        said = result.stderr.strip().splitlines()
        lines = [line for line in said if not line.startswith("collect2:")] or said
        reason = lines[-1] if lines else f"exit status {result.returncode}"
        raise OSError(f"{compiler[0]}: {reason}")
    return result.stdout


def _compiler_from_variable(variable: str, value: str) -> tuple[str, ...]:
    try:
        program, *arguments = shlex.split(value)
    except ValueError:
        program, arguments = value, []
    found = shutil.which(program)
    if found is None:
        raise ArtifactError(
            f"{variable}={value!r} does not name a program; expected a compiler: "
            f"correct {variable}, or unset it to use gcc or clang from the path"
        )
    return (found, *arguments)
