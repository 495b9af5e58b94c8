"""The kernels on CUDA, by Triton."""
