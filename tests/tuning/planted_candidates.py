"""Candidates that are wrong, crash, hang or take memory without end."""

from dataclasses import replace

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.recorded_schedule import kernel_hash
from tvm_ext.tuning.candidate import Candidate

# What a kernel does before its own work.
MISDEEDS = {
    "crash": ("abort", []),
    "hang": ("sleep", [1000]),
    "sleep": ("usleep", [200_000]),
}


def planted(candidate: Candidate, misdeed: str) -> Candidate:
    """The candidate with a flaw, and a hash of its own."""
    func = candidate.mod["main"]
    if misdeed == "wrong":
        body = _doubled(func.body)
    elif misdeed == "greedy":
        body = tirx.SeqStmt([_greed(), func.body])
    else:
        name, arguments = MISDEEDS[misdeed]
        body = tirx.SeqStmt([_call(name, *arguments), func.body])
    mod = tvm.IRModule({"main": func.with_body(body)})
    return replace(candidate, mod=mod, hash=kernel_hash(mod))


def _call(name: str, *arguments: int) -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_extern("int32", name, *arguments))


def _greed() -> tirx.Stmt:
    """Takes and fills 64 MiB at a time, for ever; a failed allocation crashes it.

    By mmap (read and write, private and anonymous): LLVM removes a malloc that nobody frees.
    """
    var = tirx.Var("again", "int64")
    size = tirx.const(1 << 26, "int64")
    nowhere = tirx.const(0, "int64")
    block = tirx.call_extern("handle", "mmap", nowhere, size, 3, 34, -1, nowhere)
    fill = tirx.Evaluate(tirx.call_extern("handle", "memset", block, 1, size))
    return tirx.For(
        var, tirx.const(0, "int64"), tirx.const(1 << 40, "int64"), tirx.ForKind.SERIAL, fill
    )


def _doubled(body: tirx.Stmt) -> tirx.Stmt:
    import tvm_ffi

    def twice(store: tirx.BufferStore) -> tirx.BufferStore:
        return tirx.BufferStore(store.buffer, store.value + store.value + 1.0, store.indices)

    return tvm_ffi.structural_map(body, (tirx.BufferStore, twice))
