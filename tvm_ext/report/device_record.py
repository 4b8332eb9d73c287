"""What the compile report says of a program for a GPU."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceRecord:
    """What a program for a GPU holds.

    Attributes
    ----------
    arch : str
        What its code was made for: "sm_90a".
    code : str
        "cubin" (machine code), "fatbin" (machine code, and PTX for later GPUs), or "source", which
        is compiled where the program runs.
    compiler : str
        What made the device code, such as "nvcc 13.0"; empty for source.
    graphs : int
        CUDA graphs that a run launches in place of single kernels.
    graph_kernels : int
        Kernel calls inside of them.
    no_graphs : str
        Why there is none.
    """

    arch: str
    code: str
    compiler: str = ""
    graphs: int = 0
    graph_kernels: int = 0
    no_graphs: str = ""

    @property
    def code_figure(self) -> str:
        """The code in words."""
        words = {
            "cubin": f"machine code for {self.arch}",
            "fatbin": f"machine code for {self.arch}, PTX for later GPUs",
        }
        figure = words.get(self.code, f"CUDA source for {self.arch}, compiled where it runs")
        return f"{figure}, by {self.compiler}" if self.compiler else figure

    @property
    def graph_figure(self) -> str:
        """The graphs in words."""
        if self.graphs:
            return f"{self.graphs:,}, with {self.graph_kernels:,} kernel calls"
        return f"none: {self.no_graphs}" if self.no_graphs else "none"
