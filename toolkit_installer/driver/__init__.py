"""NVIDIA's driver and GPUs on the node: finding them, waiting for the driver, and its CDI specification."""
