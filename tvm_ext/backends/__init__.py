"""Our backends, each composed in one file, and what plug-ins add: importing this registers all."""

from tvm_ext.backends.cpu import CPU
from tvm_ext.backends.cuda import CUDA
from tvm_ext.backends.wafer import WAFER
from tvm_ext.hardware.backend import register_backend

for _backend in (CPU, CUDA, WAFER):
    register_backend(_backend)
