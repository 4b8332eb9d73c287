"""Running on NVIDIA GPUs: the driver, device code, memory, streams and failures of the device."""
