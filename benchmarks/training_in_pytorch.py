"""Steps of training in PyTorch, for ``training.py``: it runs in a Python that has torch.

Reads lines of a way and a block, makes a step, and prints how many seconds it took and how many
bytes above those of before were in use at its peak; these are counted in the first steps only.
"""

import sys
import time
from functools import cached_property
from itertools import accumulate

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile


class Residual(nn.Module):
    """A stem, a residual block with a shortcut of stride 2, and a classifier."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()
        )
        self.body = nn.Sequential(
            nn.Conv2d(channels, wide, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.Conv2d(wide, wide, 3, padding=1, bias=False),
            nn.BatchNorm2d(wide),
        )
        self.short = nn.Sequential(
            nn.Conv2d(channels, wide, 1, stride=2, bias=False), nn.BatchNorm2d(wide)
        )
        self.head = nn.Linear(wide, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits."""
        x = self.stem(x)
        x = torch.relu(self.body(x) + self.short(x))
        return self.head(x.mean((2, 3)))


class Transformer(nn.Module):
    """A block with the normalisations in front, GELU, and a classifier of the mean."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.parts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits."""
        batch, length, width = x.shape
        normal = self.norms[0](x)
        q, k, v = (
            part(normal).view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.parts[:3]
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.parts[3](mixed.transpose(1, 2).reshape(batch, length, width))
        x = x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))
        return self.head(self.norms[2](x).mean(1))


class Recurrent(nn.Module):
    """An LSTM and a classifier of its last state and the mean of all."""

    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.layer = nn.LSTM(width, units, batch_first=True)
        self.head = nn.Linear(2 * units, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits."""
        every, (last, _) = self.layer(x)
        return self.head(torch.cat([last[0], every.mean(1)], 1))


def blocks() -> dict[str, tuple[nn.Module, list[int]]]:
    """By name, the module and the shape of its input; those of ``training.py``."""
    return {
        "mlp": (nn.Sequential(nn.Linear(20, 512), nn.ReLU(), nn.Linear(512, 10)), [128, 20]),
        "resnet block": (Residual(32), [16, 3, 32, 32]),
        "transformer block": (Transformer(128, 4), [8, 64, 128]),
        "lstm": (Recurrent(64, 128), [16, 16, 64]),
    }


class Steps:
    """Steps of one module with Adam, as PyTorch runs them or compiled."""

    def __init__(self, module: nn.Module, shape: list[int], is_compiled: bool) -> None:
        self.x, self.labels = torch.randn(shape), torch.randint(0, 10, shape[:1])
        self.optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
        self.module = torch.compile(module) if is_compiled else module

    @cached_property
    def peak_bytes(self) -> int:
        """The most bytes of a step above those that were in use before, gradients among them."""
        self.step()
        self.optimizer.zero_grad()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            self.step()
        events = profiled.profiler.kineto_results.events()
        moves = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
        return max(accumulate((nbytes for _, nbytes in moves), initial=0))

    def step(self) -> float:
        """Seconds of one step, with its loss read."""
        begun = time.perf_counter()
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.module(self.x), self.labels)
        loss.backward()
        self.optimizer.step()
        loss.item()
        return time.perf_counter() - begun


def main() -> None:
    """Answers one line after the other."""
    torch.set_num_threads(int(sys.argv[1]))
    made: dict[str, Steps] = {}
    for line in sys.stdin:
        way, block = line.strip().split(" ", 1)
        if line not in made:
            module, shape = blocks()[block]
            made[line] = Steps(module.train(), shape, way == "compiled")
        peak = made[line].peak_bytes
        print(made[line].step(), peak, flush=True)


if __name__ == "__main__":
    main()
