import gc
import os

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # the tensors are small, and the tests run side by side

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in item.keywords:
            item.add_marker(pytest.mark.slow)
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="module", autouse=True)
def _short_search_for_modules() -> None:
    """At its first step an optimizer looks for its model among all objects of the process, some 400,000 of which are
    those of torch, numba and pytest: frozen, they are passed over, which makes the search 30 times faster."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def data_dir() -> str:
    folder = os.environ.get("SPIDERSILK_DATA")
    if not folder:
        pytest.skip("needs the data sets: set SPIDERSILK_DATA to their folder")
    return folder
