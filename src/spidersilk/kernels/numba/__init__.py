"""The kernels on a CPU, compiled by numba."""
