"""Turns the CUDA C++ that TVM writes into device code, while a model is compiled or loaded.

TVM calls ``tvm_callback_cuda_compile`` where its CUDA runtime is loaded: at the end of a build, and
when it loads a module that holds source. Without a driver that runtime cannot be loaded and TVM
keeps the source. A compiler may be there all the same; its device code then travels in comments of
the source, and is taken from there on the machine with the GPU, which needs no compiler for it.
"""

import base64
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import tvm

from tvm_ext.hardware.cuda.compilers import FORMS, CudaCompiler, find_compiler, missing_compilers
from tvm_ext.hardware.cuda.runtime_library import cuda_runtime_present
from tvm_ext.hardware.tvm_compat import compile_cuda_by_tvm

# What makes TVM keep the source although its CUDA runtime is there.
_KEEP_SOURCE = "TVM_COMPILE_FORCE_FALLBACK"
_HEAD = "// tvm-ext device code: "
_EMBEDDED = re.compile(re.escape(_HEAD) + r"(\w+) (\w+)\n((?:// [A-Za-z0-9+/=]+\n)+)")
_LINE = 96

_installing = threading.Lock()
_installed: list[bool] = []


@dataclass
class CodeJob:
    """How the device code of one model is made, and what came of it.

    Attributes
    ----------
    arch : str
        What to compile for: "sm_90a".
    compiler : CudaCompiler, optional
        None keeps the source.
    form : str
        See ``architecture.CodeForm``: what the model holds.
    """

    arch: str
    compiler: CudaCompiler | None = field(default_factory=find_compiler)
    form: str = "source"

    @property
    def made_by(self) -> str:
        """The compiler that made device code; empty for source."""
        return self.compiler.name if self.compiler is not None and self.form != "source" else ""

    def compile(self, code: str) -> bytes:
        """Device code of this source; raises BuildError."""
        if self.compiler is None:
            raise RuntimeError(missing_compilers())
        self.form = self.compiler.form(self.arch)
        return self.compiler.compile(code, self.arch)


_job: ContextVar[CodeJob | None] = ContextVar("device code job", default=None)


@contextmanager
def making_device_code(arch: str) -> Iterator[CodeJob]:
    """TVM makes device code inside of this block as the job says. Raises BuildError."""
    _install()
    job = CodeJob(arch)
    token = _job.set(job)
    try:
        with _source_kept(job):
            yield job
    finally:
        _job.reset(token)


def embed(code: str, binary: bytes, arch: str, form: str) -> str:
    """The source with its device code in comments before it."""
    text = base64.b64encode(binary).decode()
    lines = [f"// {text[start : start + _LINE]}\n" for start in range(0, len(text), _LINE)]
    return f"{_HEAD}{form} {arch}\n{''.join(lines)}{code}"


def embedded(code: str) -> bytes | None:
    """The device code in a source's comments; None where there is none."""
    found = _EMBEDDED.match(code)
    if found is None or found.group(1) not in FORMS:
        return None
    return base64.b64decode(found.group(3).replace("// ", "").replace("\n", ""))


@contextmanager
def _source_kept(job: CodeJob) -> Iterator[None]:
    """Without a compiler TVM must not be asked to use one."""
    before = os.environ.get(_KEEP_SOURCE)
    if job.compiler is None:
        os.environ[_KEEP_SOURCE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_KEEP_SOURCE, None)
        else:
            os.environ[_KEEP_SOURCE] = before


def _install() -> None:
    """Puts our functions in the place of TVM's, once; outside of a job they do what TVM's do."""
    with _installing:
        if _installed:
            return
        _installed.append(True)
        before = tvm.get_global_func("tvm_callback_cuda_postproc", allow_missing=True)

        def after_codegen(code: str, target: tvm.target.Target) -> str:
            job = _job.get()
            if job is None:
                return str(before(code, target)) if before is not None else code
            return _after_codegen(job, str(code))

        tvm.register_global_func("tvm_callback_cuda_postproc", after_codegen, override=True)
        tvm.register_global_func("tvm_callback_cuda_compile", _compile, override=True)


def _after_codegen(job: CodeJob, code: str) -> str:
    if job.compiler is None or cuda_runtime_present():
        return code
    binary = job.compile(code)
    return embed(code, binary, job.arch, job.form)


def _compile(code: str) -> bytes:
    job = _job.get()
    if job is None:
        return compile_cuda_by_tvm(code)
    found = embedded(str(code))
    return found if found is not None else job.compile(str(code))
