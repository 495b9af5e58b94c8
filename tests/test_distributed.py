"""Data parallel training: the same trajectory for any number of ranks, k values on the wire, and what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from parallel import METHODS, Pool, trajectory


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


@pytest.mark.parametrize("method", METHODS)
def test_any_number_of_ranks_goes_the_same_way(pool: Pool, method: str) -> None:
    """100 steps in float64. The batches of 37 and 7 divide by neither 2 nor 4, so ranks count by their samples."""
    alone, queries = trajectory(None, method)
    for ranks in (2, 4):
        for points, counted in pool.run(trajectory, method, ranks=ranks):
            torch.testing.assert_close(points, alone, rtol=0, atol=1e-6)
            assert counted == queries
