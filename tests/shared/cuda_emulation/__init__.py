from cuda_emulation.building import CudaEmulationError, emulated_builds, set_seed

__all__ = ["CudaEmulationError", "emulated_builds", "set_seed"]
