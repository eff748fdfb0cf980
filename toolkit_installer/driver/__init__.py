"""NVIDIA's driver and GPUs as the node shows them: found, waited for, and described for CDI."""
