"""Generates code for a planned module, with the fallback schedule for kernels that TVM refuses,
and makes the program.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import vm_build

from tvm_ext.compiler.backend import programs_of
from tvm_ext.compiler.compile_context import current_compilation
from tvm_ext.compiler.graph_analysis import has_few_kernels
from tvm_ext.compiler.kernel_code import KernelCode, KernelObjects
from tvm_ext.configs.progress import tell
from tvm_ext.errors import REPORT_IT, BuildError
from tvm_ext.hardware.cpu.description import code_target
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.cuda.device_code import making_device_code
from tvm_ext.hardware.cuda.runtime_library import runtime_problem
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.passes import registry
from tvm_ext.passes.calls_of_kernels import calls_kernels, with_symbols
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
from tvm_ext.tir_schedules.backend import scheduling_of
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
    is_small = target.kind.name == "llvm" and has_few_kernels(mod)
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
    return {v: with_symbols(f, mod) if calls_kernels(f) else f for v, f in kernels}


def _kernel_objects(
    functions: Mapping[tvm.ir.GlobalVar, tirx.PrimFunc],
    attrs: tvm.ir.Attrs | None,
    target: tvm.target.Target,
) -> KernelObjects:
    """Objects with all of ``functions``; what the compilation has begun is not made again."""
    compilation = current_compilation()
    begun = compilation.code if compilation is not None else None
    if begun is not None and begun.is_for(target, attrs):
        return begun.objects(functions)
    with KernelCode(target, attrs) as code:
        return code.objects(functions)


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
        if isinstance(func, tirx.PrimFunc) and not calls_kernels(func)
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
