"""Machine code of a CPU's kernels: objects that threads make side by side, or which an earlier
compilation left in the cache.

With the cache, each kernel has an object of its own; all arithmetic of sizes is one.

The name of a kernel in its object is made from what it computes, so that models share it. A script
for the linker adds the names that the program uses.
"""

import hashlib
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.compiler.backend import programs_of
from tvm_ext.compiler.program_cache import ProgramCache, code_versions, program_cache
from tvm_ext.configs.progress import tell
from tvm_ext.hardware.cpu.description import code_target
from tvm_ext.hardware.cpu.system import usable_cores
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.passes.calls_of_kernels import SYMBOL_PREFIX, calls_kernels
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.cpu.tensor_start import NO_OPERATOR
from tvm_ext.tir_schedules.lowering_pipeline import lowering_pipeline, pass_options

_DIGITS_IN_NAME = 16

# Setting up LLVM for an object takes as long as code for a small kernel.
_KERNELS_PER_OBJECT = 4

# On functions that TVM makes of a program's arithmetic of sizes.
_OF_HOST = "tirx.is_host_func"


@dataclass(frozen=True)
class KernelObjects:
    """Objects with the code of kernels, and how many of these the cache had."""

    modules: Sequence[tvm_ffi.Module]
    from_cache: int = 0


@dataclass(frozen=True)
class _Made:
    """An object by its key, with the names in it, and whether it was in the cache."""

    key: str
    names: Sequence[str]
    code: bytes
    from_cache: bool


class KernelCode:
    """The objects of one compilation, as a context: behind it, none is made any more.

    What has begun ahead of the build, when a kernel's loops were final, is found by the key that
    decides about the code. A kernel that changed in the meantime is made again.

    Parameters
    ----------
    target
        As ``code_target`` gives it.
    attrs
        Those of the program's module.
    """

    def __init__(self, target: tvm.target.Target, attrs: tvm.ir.Attrs | None = None) -> None:
        self._target = target
        # A system library has prefixes in its names, and scripts are for linkers of ELF files.
        has_prefix = attrs is not None and "system_lib_prefix" in attrs
        self._is_shared = platform.system() == "Linux" and not has_prefix
        versions = code_versions()
        is_cached = self._is_shared and versions is not None
        self._cache: ProgramCache | None = program_cache() if is_cached else None
        self._for_all = {
            "target": target.export(),
            "options": pass_options(target),
            "made by": versions,
        }
        # What is kept is found again kernel by kernel.
        self._together = _KERNELS_PER_OBJECT if self._cache is None else 1
        self._waiting: dict[str, tuple[tirx.PrimFunc, str]] = {}
        self._made: dict[str, Future[_Made]] = {}
        self._pool = ThreadPoolExecutor(usable_cores(), "tvm-ext-code")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def is_for(self, target: tvm.target.Target, attrs: tvm.ir.Attrs | None) -> bool:
        """Whether code of a module with ``attrs`` for ``target`` is what is made here."""
        has_prefix = attrs is not None and "system_lib_prefix" in attrs
        return not has_prefix and self._for_all["target"] == target.export()

    def begin(self, func: tirx.PrimFunc, symbol: str) -> None:
        """Has the object of a kernel made, once for all that compute the same."""
        self._waiting[self._key(func, symbol)] = (func, symbol)
        if len(self._waiting) >= self._together:
            self._begin(self._waiting)
            self._waiting = {}

    def _begin(self, functions: Mapping[str, tuple[tirx.PrimFunc, str]]) -> None:
        """Has one object made of functions by their keys, but for those that have one."""
        new = {key: one for key, one in functions.items() if key not in self._made}
        if not new:
            return
        named = {self._name(key, symbol): func for key, (func, symbol) in new.items()}
        first, *others = new
        # The cache knows a function alone by its own key.
        key = hashlib.sha256("".join(new).encode()).hexdigest() if others else first
        self._made |= dict.fromkeys(new, self._pool.submit(self._object, named, key))

    def _name(self, key: str, symbol: str) -> str:
        """A function's name in its object."""
        return f"{_without_numbers(symbol)}_{key[:_DIGITS_IN_NAME]}" if self._is_shared else symbol

    def objects(self, functions: Mapping[tvm.ir.GlobalVar, tirx.PrimFunc]) -> KernelObjects:
        """Objects with all of ``functions``; raises what code generation of one raises."""
        # So that none of the largest is left to the end.
        ordered = sorted(functions, key=lambda var: (-_size(functions[var]), str(var.name_hint)))
        parts = {var: (functions[var], _symbol(functions[var])) for var in ordered}
        keys = {var: self._key(*part) for var, part in parts.items()}
        # A dozen expressions of sizes, for each of which LLVM would be set up.
        hosts = [var for var in ordered if _OF_HOST in functions[var].attrs]
        # LLVM optimises none of these.
        calling = [var for var in ordered if calls_kernels(functions[var])]
        apart = {*hosts, *calling}
        rest = [v for v in ordered if v not in apart and keys[v] not in self._made]
        count = -(-len(rest) // self._together)
        groups = [hosts, *([var] for var in calling), *(rest[n::count] for n in range(count))]
        for group in groups:
            self._begin({keys[var]: parts[var] for var in group})
        made = self._results(list(keys.values()))
        objects = {one.key: one for one in made.values()}
        if self._cache is not None:
            new = {key: one.code for key, one in objects.items() if not one.from_cache}
            self._cache.keep_objects(new)
        modules = [_loaded(one.code, one.names) for one in objects.values()]
        if self._is_shared:
            symbols = {symbol: self._name(keys[var], symbol) for var, (_, symbol) in parts.items()}
            modules.append(_loaded(_linker_script(symbols), list(symbols)))
        found = [functions[var] for var, key in keys.items() if made[key].from_cache]
        return KernelObjects(modules, sum(NO_OPERATOR not in func.attrs for func in found))

    def _results(self, keys: Sequence[str]) -> dict[str, _Made]:
        futures = {self._made[key] for key in keys}
        done = 0
        for one in as_completed(futures):
            one.result()
            done += sum(self._made[key] is one for key in keys)
            tell(f"code for {done} of {len(keys)} kernels")
        return {key: self._made[key].result() for key in keys}

    def _key(self, func: tirx.PrimFunc, symbol: str) -> str:
        """A key for all that decides about a kernel's code: hexadecimal digits.

        The hash that TVM makes of a function says nothing of names, and 64 bits are enough for
        chance; the number of its statements is beside it.
        """
        if "global_symbol" in (func.attrs or {}):
            func = func.without_attr("global_symbol")
        facts = {
            "kernel": tvm_ffi.structural_hash(func, map_free_vars=True),
            "size": _size(func),
            "name": _without_numbers(symbol) if self._is_shared else symbol,
            **self._for_all,
        }
        text = json.dumps(facts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def _object(self, functions: Mapping[str, tirx.PrimFunc], key: str) -> _Made:
        """For a thread, which has no context of the others."""
        found = self._cache.find_object(key) if self._cache is not None else None
        if found is not None:
            return _Made(key, list(functions), found, True)
        target = self._target
        if any(map(calls_kernels, functions.values())):
            # Thousands of stores, on which LLVM's optimisations take seconds.
            target = tvm.target.Target({**target.export(), "opt-level": 0})
        named = {
            tvm.ir.GlobalVar(name): func.with_attr("global_symbol", name)
            for name, func in functions.items()
        }
        with (
            tvm.transform.PassContext(opt_level=3, config=pass_options(target)),
            _file_in_memory() as path,
        ):
            built = tirx.build(tvm.IRModule(named), target, lowering_pipeline(target))
            built.write_to_file(str(path), "o")
            return _Made(key, list(functions), path.read_bytes(), False)


def kernel_code(machine: MachineDescription) -> AbstractContextManager[KernelCode | None]:
    """Where the code of a compilation is made; None for devices whose code is made elsewhere."""
    target = machine.tvm_target()
    if programs_of(machine).device != "cpu" or target.kind.name != "llvm":
        return nullcontext()
    return KernelCode(code_target(target))


def _size(func: tirx.PrimFunc) -> int:
    return len(nodes(func.body, tvm.ir.TensorLoad, tirx.BufferStore, tirx.For))


def _symbol(func: tirx.PrimFunc) -> str:
    return str(func.attrs["global_symbol"])


def _loaded(code: bytes, names: Sequence[str]) -> tvm_ffi.Module:
    """What goes to the linker, as TVM keeps it."""
    with _file_in_memory() as path:
        path.write_bytes(code)
        return tvm.runtime.load_static_library(str(path), list(names))


@contextmanager
def _file_in_memory() -> Iterator[Path]:
    """A file for what TVM writes and reads by its path only; on a disk where there is no other.

    On a full disk, LLVM ends the process.
    """
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryDirectory(prefix="tvmx-") as folder:
            yield Path(folder) / "kernels.o"
        return
    descriptor = os.memfd_create("kernels.o")
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _without_numbers(name: str) -> str:
    """What profilers show: the kernel's name without the numbers that tell its likes apart."""
    return re.sub(r"\d+(?=_|$)", "", name)


def _linker_script(symbols: Mapping[str, str]) -> bytes:
    """Gives what is named by a value of ``symbols`` the name that is its key as well.

    A file that is no object is read as a script: "Implicit Linker Scripts" in the manual of GNU ld.
    In quotes, as a kernel may have the name of a Python function, ``<lambda>``: "Symbol Names".
    """
    lines = [
        f'"{SYMBOL_PREFIX}{name}" = "{SYMBOL_PREFIX}{other}";' for name, other in symbols.items()
    ]
    return "\n".join([*lines, ""]).encode()
