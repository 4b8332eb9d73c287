"""The kernels whose source is compared with files; run this file to write the files anew."""

from pathlib import Path

from csl_kernels import elementwise, machine, matmul, over_mesh, product
from tvm import te, tirx

GOLDEN = Path(__file__).parent / "golden"


def _clip():
    low, high = (tirx.const(value, "float32") for value in (-0.5, 0.5))
    return elementwise(lambda a, b: te.max(te.min(a * 2.0 + b, high), low), dtypes=("float32",) * 2)


CASES = {
    "clip": lambda: over_mesh(_clip()),
    "sigmoid": lambda: over_mesh(elementwise(te.sigmoid)),
    "summa_in_turn": lambda: matmul(product(20, 18, 14), rows=4, columns=3, overlapped=0),
    "summa_overlapped_f16": lambda: matmul(
        product(8, 10, 6, "float16", relu=False), rows=2, columns=2, overlapped=1
    ),
}


def source(name):
    """The files of one case."""
    from tvm_ext.wafer.csl import kernel_code

    return kernel_code(CASES[name](), machine(), name).files


if __name__ == "__main__":
    for case in CASES:
        (GOLDEN / case).mkdir(parents=True, exist_ok=True)
        for file, text in source(case).items():
            (GOLDEN / case / file).write_text(text, encoding="utf-8")
