"""Training: forward, backward and update of an imported model as one compiled program."""

from tvm_ext.training.losses import CrossEntropy, MeanSquaredError
from tvm_ext.training.optimizers import SGD, Adam, AdamW
from tvm_ext.training.trainer import Trainer, compile_training

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "CrossEntropy",
    "MeanSquaredError",
    "Trainer",
    "compile_training",
]
