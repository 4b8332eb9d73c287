"""Modules after PadOutputChannels, their kernels, and what they compute."""

import tvm
from tvm import relax, tirx
from unoptimised import LLVM

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.relay_passes.pad_output_channels import PadOutputChannels

AVX512 = resolve_target("avx512")


def padded(mod):
    with compiling_for(AVX512):
        return tvm.transform.Sequential([PadOutputChannels()])(mod)


def kernels(mod):
    return [str(g.name_hint) for g, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)]


def run(mod, *arrays):
    executable = tvm.compile(mod, target=LLVM)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()
