"""Generates code for a planned module, with the fallback schedule for kernels that TVM refuses,
and makes the program.
"""

import hashlib
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import vm_build

from tvm_ext.compiler.backend import programs_of
from tvm_ext.compiler.compile_context import current_compilation
from tvm_ext.compiler.program_cache import ProgramCache, code_versions, program_cache
from tvm_ext.configs.progress import tell
from tvm_ext.errors import REPORT_IT, BuildError
from tvm_ext.hardware.cpu.description import code_target
from tvm_ext.hardware.cpu.system import usable_cores
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.cuda.device_code import making_device_code
from tvm_ext.hardware.cuda.runtime_library import runtime_problem
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.passes import registry
from tvm_ext.passes.calls_of_kernels import CALLS_KERNELS, SYMBOL_PREFIX, with_symbols
from tvm_ext.relay_passes.cuda_graphs import captured_kernels, launches_only, without_capture
from tvm_ext.relay_passes.spans import bindings_of, relax_functions
from tvm_ext.report.records import (
    RELEASE_RESULTS,
    DeviceRecord,
    KernelCall,
    as_machine_code,
    runs_a_model,
)
from tvm_ext.tensor_spec import listed
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.backend import scheduling_of
from tvm_ext.tir_schedules.cpu.tensor_start import NO_OPERATOR
from tvm_ext.tir_schedules.cuda.cublas import library_modules
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels, lowering_pipeline, pass_options
from tvm_ext.tir_schedules.schedule_kernels import ScheduleChoice, schedule_by_fallback

# What code generation raises.
BUILD_ERRORS = (tvm.error.InternalError, RuntimeError, ValueError, TypeError, AttributeError)


def build(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    origins: Mapping[str, Sequence[str]] | None = None,
) -> relax.VMExecutable:
    """The executable of the virtual machine.

    ``origins`` are the nodes that each kernel computes, by its name.

    Raises
    ------
    BuildError
        Code generation fails: the tool chain lacks something, a kernel breaks a limit, or the
        temporary folder is full.
    """
    kernels = sum(isinstance(func, tirx.PrimFunc) for func in mod.functions.values())
    tell(f"code for {kernels} kernels")
    try:
        with tvm.transform.PassContext(opt_level=3, config=pass_options(target)):
            built = _executable(mod, code_target(target))
        for module in library_modules(mod):
            # Beside the device code of the kernels that call it.
            built.mod.imports[0].import_module(module)
        return built
    except OSError as error:
        raise BuildError(
            f"the code of kernels cannot be written ({error.strerror or error}); expected room in "
            "the temporary folder: set TMPDIR to a folder with free space"
        ) from error
    except BUILD_ERRORS as error:
        raise BuildError(_no_code(mod, target, origins or {}), defect=True) from error


def _executable(mod: tvm.IRModule, target: tvm.target.Target) -> relax.VMExecutable:
    """The program as bytecode; one of few kernels as machine code beside it.

    An instruction of bytecode takes 50 ns: a third of the run of a model of a few small kernels,
    and nothing of a model of many. What finds out where a run is, a profile or an error, needs
    bytecode.
    """
    builder = relax.ExecBuilder()
    kernels = sum(isinstance(func, tirx.PrimFunc) for func in mod.functions.values())
    is_small = target.kind.name == "llvm" and kernels < 2 * _KERNELS_PER_OBJECT
    entries = _entries(mod) if is_small else {}
    functions = _without_bytecode(builder, mod, entries)
    objects: Sequence[tvm_ffi.Module] = ()
    if target.kind.name == "llvm":
        with builder.function(RELEASE_RESULTS):
            builder.emit_call("ffi.Array", dst=builder.r(0))
            builder.emit_ret(builder.r(0))
    if is_small:
        both = tvm.IRModule({**functions, **entries}, attrs=mod.attrs)
        functions = dict(vm_build._vmcodegen(builder, both, "compiled").functions.items())
    elif target.kind.name == "llvm":
        made = _kernel_objects(functions, mod.attrs, target)
        objects, functions = made.modules, {}
        if (compilation := current_compilation()) is not None:
            compilation.kernels_from_cache = made.from_cache
    rest = tvm.IRModule(functions, attrs=mod.attrs)
    # What passes that offload to other libraries (BYOC) leave.
    attrs = dict(mod.attrs.items()) if mod.attrs else {}
    libraries = [*attrs.get("external_mods", ()), *objects]
    constants = dict(attrs.get("const_name_to_constant", {}))
    return vm_build._vmlink(builder, target, rest, lowering_pipeline(target), libraries, constants)


def _without_bytecode(
    builder: relax.ExecBuilder,
    mod: tvm.IRModule,
    entries: Mapping[tvm.ir.GlobalVar, relax.Function],
) -> dict[tvm.ir.GlobalVar, tirx.PrimFunc]:
    """The kernels, once ``builder`` has bytecode of all functions that are no ``entries``."""
    names = {str(var.name_hint) for var in entries}
    others = {var: func for var, func in mod.functions.items() if var.name_hint not in names}
    rest = tvm.IRModule(others, attrs=mod.attrs)
    kernels = vm_build._vmcodegen(builder, rest, "bytecode").functions.items()
    return {v: with_symbols(f, mod) if _calls_kernels(f) else f for v, f in kernels}


# Objects with the code of a CPU's kernels, which threads make side by side, or which an earlier
# compilation left in the cache.

# Setting up LLVM for an object takes as long as code for a small kernel.
_KERNELS_PER_OBJECT = 4
_MOST_OBJECTS = 16

_Functions: TypeAlias = Mapping[tvm.ir.GlobalVar, tirx.PrimFunc]


@dataclass(frozen=True)
class _KernelObjects:
    """Objects with the code of kernels, and how many of these the cache had."""

    modules: Sequence[tvm_ffi.Module]
    from_cache: int = 0


def _kernel_objects(
    functions: _Functions, attrs: tvm.ir.Attrs | None, target: tvm.target.Target
) -> _KernelObjects:
    """Objects with all of ``functions``."""
    cache = _cache(attrs)
    if cache is not None:
        return _by_cache(functions, target, cache)
    count = max(min(len(functions) // _KERNELS_PER_OBJECT, _MOST_OBJECTS), 1)
    ordered = _largest_first(functions)
    # A function that calls kernels looks for them in other objects.
    apart = [[var] for var in ordered if _calls_kernels(functions[var])]
    ordered = [var for var in ordered if not _calls_kernels(functions[var])]
    parts = [*(ordered[start::count] for start in range(count)), *apart]
    groups = [{var: functions[var] for var in part} for part in parts]
    codes = _side_by_side([tvm.IRModule(group, attrs=attrs) for group in groups], target)
    symbols = [[_symbol(func) for func in group.values()] for group in groups]
    return _KernelObjects([_loaded(*one) for one in zip(codes, symbols, strict=True)])


def _largest_first(functions: _Functions) -> list[tvm.ir.GlobalVar]:
    """So that none of the largest is left to the end."""
    return sorted(functions, key=lambda var: (-_size(functions[var]), str(var.name_hint)))


def _size(func: tirx.PrimFunc) -> int:
    return len(nodes(func.body, tvm.ir.TensorLoad, tirx.BufferStore, tirx.For))


def _calls_kernels(func: tirx.PrimFunc) -> bool:
    return CALLS_KERNELS in func.attrs


def _symbol(func: tirx.PrimFunc) -> str:
    return str(func.attrs["global_symbol"])


def _side_by_side(modules: Sequence[tvm.IRModule], target: tvm.target.Target) -> list[bytes]:
    """The object of each of ``modules``, made on all cores."""
    total = sum(len(mod.functions) for mod in modules)
    pool = ThreadPoolExecutor(usable_cores(), "tvm-ext-code")
    try:
        made = {pool.submit(_object, mod, target): len(mod.functions) for mod in modules}
        done = 0
        for one in as_completed(made):
            one.result()
            done += made[one]
            tell(f"code for {done} of {total} kernels")
        return [one.result() for one in made]
    finally:
        pool.shutdown(cancel_futures=True)


def _object(kernels: tvm.IRModule, target: tvm.target.Target) -> bytes:
    """An object file with ``kernels``; for a thread, which has no context of the others."""
    with (
        tvm.transform.PassContext(opt_level=3, config=pass_options(target)),
        _file_in_memory() as path,
    ):
        if any(_calls_kernels(func) for func in kernels.functions.values()):
            # Thousands of stores, on which LLVM's optimisations take seconds.
            target = tvm.target.Target({**target.export(), "opt-level": 0})
        tirx.build(kernels, target, lowering_pipeline(target)).write_to_file(str(path), "o")
        return path.read_bytes()


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


# With the cache each kernel has an object of its own, in which its name is made from what it
# computes, so that models share it. A script for the linker adds the names that the program uses.


def _cache(attrs: tvm.ir.Attrs | None) -> ProgramCache | None:
    """The cache; None where what a key says does not decide about code and names."""
    # A system library has prefixes in its names, and scripts are for linkers of ELF files.
    has_prefix = attrs is not None and "system_lib_prefix" in attrs
    if platform.system() != "Linux" or has_prefix or code_versions() is None:
        return None
    return program_cache()


def _by_cache(
    functions: _Functions, target: tvm.target.Target, cache: ProgramCache
) -> _KernelObjects:
    ordered = _largest_first(functions)
    for_all = {
        "target": target.export(),
        "options": pass_options(target),
        "made by": code_versions(),
    }
    keys = {var: _key(functions[var], for_all) for var in ordered}
    # Kernels that compute the same have one object.
    owners = {key: var for var, key in reversed(keys.items())}
    names = {
        key: f"{_without_numbers(_symbol(functions[var]))}_{key[:_DIGITS_IN_NAME]}"
        for key, var in owners.items()
    }
    codes = {key: cache.find_object(key) for key in keys.values()}
    missing = [key for key, code in codes.items() if code is None]
    named = [_named(functions[owners[key]], names[key]) for key in missing]
    made = dict(zip(missing, _side_by_side(named, target), strict=True))
    cache.keep_objects(made)
    modules = [
        _loaded(made[key] if code is None else code, [names[key]]) for key, code in codes.items()
    ]
    symbols = {_symbol(functions[var]): names[key] for var, key in keys.items()}
    modules.append(_loaded(_linker_script(symbols), list(symbols)))
    found = [var for var, key in keys.items() if key not in made]
    return _KernelObjects(modules, sum(NO_OPERATOR not in functions[var].attrs for var in found))


_DIGITS_IN_NAME = 16


def _key(func: tirx.PrimFunc, for_all: Mapping[str, object]) -> str:
    """A key for all that decides about a kernel's code: hexadecimal digits.

    ``for_all`` is what decides about that of each kernel of a program.

    The hash that TVM makes of a function says nothing of names, and 64 bits are enough for chance;
    the number of its statements is beside it.
    """
    facts = {
        "kernel": tvm_ffi.structural_hash(func.without_attr("global_symbol"), map_free_vars=True),
        "size": _size(func),
        "name": _without_numbers(_symbol(func)),
        **for_all,
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_numbers(name: str) -> str:
    """What profilers show: the kernel's name without the numbers that tell its likes apart."""
    return re.sub(r"\d+(?=_|$)", "", name)


def _named(func: tirx.PrimFunc, name: str) -> tvm.IRModule:
    return tvm.IRModule({tvm.ir.GlobalVar(name): func.with_attr("global_symbol", name)})


def _linker_script(symbols: Mapping[str, str]) -> bytes:
    """Gives what is named by a value of ``symbols`` the name that is its key as well.

    A file that is no object is read as a script: "Implicit Linker Scripts" in the manual of GNU ld.
    """
    lines = [f"{SYMBOL_PREFIX}{name} = {SYMBOL_PREFIX}{other};" for name, other in symbols.items()]
    return "\n".join([*lines, ""]).encode()


# The rest of the program.


def _entries(mod: tvm.IRModule) -> dict[tvm.ir.GlobalVar, relax.Function]:
    """The program's functions under the names that they have as machine code.

    Those that call kernels directly are so named already. None where one calls another or has
    branches, which TVM makes no machine code of.
    """
    programs = {str(var.name_hint): func for var, func in relax_functions(mod).items()}
    made = {name for name in programs if runs_a_model(name)}
    direct = {as_machine_code(name) for name in made}
    values = [binding.value for func in programs.values() for binding in bindings_of(func)]
    if programs.keys() - made - direct or any(isinstance(v, relax.If) for v in values):
        return {}
    entries = {as_machine_code(name): programs[name] for name in made}
    entries |= {name: programs[name] for name in direct & programs.keys()}
    return {
        tvm.ir.GlobalVar(name): func.with_attr("global_symbol", name)
        for name, func in entries.items()
    }


def can_be_built(func: tirx.PrimFunc, target: tvm.target.Target) -> bool:
    """Whether code can be generated for a kernel alone."""
    try:
        compile_kernels(func.with_attr("global_symbol", "main"), target)
    except BUILD_ERRORS:
        return False
    return True


def _no_code(
    mod: tvm.IRModule, target: tvm.target.Target, origins: Mapping[str, Sequence[str]]
) -> str:
    kernels = {
        str(global_var.name_hint): func
        for global_var, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc) and not _calls_kernels(func)
    }
    failed = [name for name, func in kernels.items() if not can_be_built(func, target)]
    kind = target.kind.name
    if failed and len(failed) == len(kernels) > 1:
        return (
            f"no code can be generated for target {kind} for any of {len(kernels)} kernels; "
            "expected a tool chain that works and a target that it knows: try another --target, "
            f"or {REPORT_IT}"
        )
    nodes = [" + ".join(origins.get(name, ())) or f"kernel {name}" for name in failed]
    where = f"what '{listed(nodes)}' computes" if nodes else "the program around its kernels"
    return (
        f"bug in tvm-ext: no code can be generated for target {kind} for {where}; expected code "
        f"for every kernel: try --opt-level 0 or another --target, and {REPORT_IT}"
    )


# Kernels for a GPU whose code TVM refuses to generate, scheduled once more by the fallback.


@dataclass(frozen=True)
class Built:
    """An executable with the module and the schedules that it was built from."""

    executable: relax.VMExecutable
    mod: tvm.IRModule
    choices: dict[str, ScheduleChoice]


def build_with_fallback(
    planned: tvm.IRModule,
    target: tvm.target.Target,
    machine: MachineDescription,
    unscheduled: tvm.IRModule,
    choices: dict[str, ScheduleChoice],
    origins: Mapping[str, Sequence[str]] | None = None,
) -> Built:
    """The executable of ``planned``.

    A schedule for a GPU can break a rule that only code generation checks. Where the build fails,
    each kernel is built alone, and those that fail get the schedule that any kernel can have, from
    their form in ``unscheduled``. ``origins`` are the nodes of each kernel, for messages.

    Raises
    ------
    BuildError
        Code generation fails, and for another reason than the schedule of a kernel for a GPU.
    """
    try:
        return Built(build(planned, target, origins), planned, choices)
    except BuildError:
        if scheduling_of(machine).is_bound is None:
            raise
        functions, changed = dict(planned.functions.items()), dict(choices)
        for global_var, func in planned.functions.items():
            name = str(global_var.name_hint)
            if not isinstance(func, tirx.PrimFunc) or name not in choices or choices[name].packed:
                continue
            if not can_be_built(func, target):
                again, choice = schedule_by_fallback(unscheduled[name], machine)
                functions[global_var] = _like(func, again)
                changed[name] = _explained(choice, choices[name])
        if changed == choices:
            raise
    mod = registry.get("PropagateNan").make({})(tvm.IRModule(functions, attrs=planned.attrs))
    return Built(build(mod, target, origins), mod, changed)


def _like(func: tirx.PrimFunc, again: tirx.PrimFunc) -> tirx.PrimFunc:
    """``again`` under the name that ``func`` has in its module, with as many parameters.

    What ``func`` has more of are workspaces, which ``again`` does not need.
    """
    more = func.params[len(again.params) :]
    if more:
        params = [*again.params, *more]
        again = tirx.PrimFunc(params, again.body, again.ret_type, again.attrs)
    symbol = func.attrs.get("global_symbol") if func.attrs is not None else None
    if symbol is not None:
        return again.with_attr("global_symbol", symbol)
    return again.without_attr("global_symbol") if "global_symbol" in again.attrs else again


def _explained(choice: ScheduleChoice, before: ScheduleChoice) -> ScheduleChoice:
    refusal = f"{before.schedule}: no code could be generated"
    return replace(choice, refusals=(*before.refusals, refusal), miss=before.miss)


# The program of a compilation, and what it holds for a GPU.


@dataclass(frozen=True)
class BuiltProgram:
    """A program with the schedules that it was built with."""

    executable: relax.VMExecutable
    choices: dict[str, ScheduleChoice]
    device: DeviceRecord | None = None


def build_program(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    machine: MachineDescription,
    unscheduled: tvm.IRModule,
    choices: dict[str, ScheduleChoice],
    calls: Sequence[KernelCall] = (),
) -> BuiltProgram:
    """The program of a planned module; see ``build_with_fallback``. Raises BuildError.

    ``calls`` say which nodes a kernel computes, for messages.
    """
    origins = {call.kernel: call.origins for call in reversed(calls)}
    program: BuiltProgram = programs_of(machine).build(
        mod, target, machine, unscheduled, choices, origins
    )
    return program


def cpu_program(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    machine: MachineDescription,
    unscheduled: tvm.IRModule,
    choices: dict[str, ScheduleChoice],
    origins: Mapping[str, Sequence[str]],
) -> BuiltProgram:
    """The program for a CPU."""
    built = build_with_fallback(mod, target, machine, unscheduled, choices, origins)
    return BuiltProgram(built.executable, built.choices)


def cuda_program(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    machine: CudaDescription,
    unscheduled: tvm.IRModule,
    choices: dict[str, ScheduleChoice],
    origins: Mapping[str, Sequence[str]],
) -> BuiltProgram:
    """The program for a GPU, with what its device code is."""
    # Where there is a GPU, the code is made for it to be loaded at once.
    runtime_problem()
    with making_device_code(machine.arch) as job:
        built = build_with_fallback(mod, target, machine, unscheduled, choices, origins)
        unsafe = built.choices != choices and not launches_only(built.mod)
        if unsafe:
            # A kernel with another schedule than the graphs were planned with.
            plain = without_capture(built.mod)
            built = replace(built, executable=build(plain, target), mod=plain)
    graphs, kernels = (0, 0) if unsafe else captured_kernels(built.mod)
    reason = "a kernel allocates memory while it runs" if unsafe else ""
    device = DeviceRecord(job.arch, job.form, job.made_by, graphs, kernels, reason)
    return BuiltProgram(built.executable, built.choices, device)
