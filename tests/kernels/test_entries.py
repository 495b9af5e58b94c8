"""Single entries of weights and gradients: torch and numba (Triton: triton_cases.py and test_cuda.py)."""

from __future__ import annotations

import entry_cases
import pytest
import torch

from spidersilk.kernels import backends
from spidersilk.kernels.interface import Kernels


@pytest.fixture(params=["torch", "numba"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return backends.find(request.param, [(torch.device("cpu"), torch.float32)])


@pytest.mark.parametrize("dtype", entry_cases.DTYPES)
@pytest.mark.parametrize(("size", "k"), entry_cases.SIZES)
def test_take(kernels: Kernels, dtype: torch.dtype, size: int, k: int) -> None:
    entry_cases.check_take(kernels, "cpu", dtype, size, k)


@pytest.mark.parametrize("dtype", entry_cases.DTYPES)
def test_refresh_and_write_through(kernels: Kernels, dtype: torch.dtype) -> None:
    entry_cases.check_through(kernels, "cpu", dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "k"), entry_cases.SIZES)
def test_carry(kernels: Kernels, dtype: torch.dtype, size: int, k: int) -> None:
    entry_cases.check_carry(kernels, "cpu", dtype, size, k)


@pytest.mark.parametrize("dtype", entry_cases.DTYPES)
def test_groups(kernels: Kernels, dtype: torch.dtype) -> None:
    entry_cases.check_groups(kernels, "cpu", dtype)
