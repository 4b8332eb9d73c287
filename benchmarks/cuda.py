"""Speed on this machine's GPU: tvm-ext beside PyTorch, in one run, as shares of measured peaks.

Single kernels beside PyTorch's operators (cuBLAS, its fused attention, cuDNN), whole models beside
torch.compile and ONNX Runtime's CUDA provider where those are installed. Outputs are compared
first, then programs take turns; figures are medians of device time, with what the call before has
left in the cache. A ratio is the other program's time by ours: above 1, tvm-ext is faster. Exit
code 1 when one of ours is wrong or missing, 2 without a device or PyTorch.

    python benchmarks/cuda.py
    python benchmarks/cuda.py --groups matmul attention --json out.json
    python benchmarks/cuda.py resnet.onnx --input-shape x=32,3,224,224
"""

import sys
from pathlib import Path

if __name__ == "cuda":
    # NVIDIA's Python package has this name, and libraries look for it.
    raise ModuleNotFoundError("benchmarks/cuda.py is a program", name="cuda")

# Behind the installed packages, so that none of them finds this file for NVIDIA's.
FOLDER = str(Path(__file__).parent)
sys.path = [folder for folder in sys.path if folder != FOLDER] + [FOLDER]

from gpu.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(__doc__))
