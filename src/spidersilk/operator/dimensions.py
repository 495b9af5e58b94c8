"""Which dimension of a weight its groups are along."""

from __future__ import annotations

from torch import Tensor, nn

_INPUTS_FIRST = (nn.Embedding, nn.EmbeddingBag, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def group_dimension(module: nn.Module | None, weight: Tensor) -> int:
    """Of "columns": the input features of a layer, the rows of a table; 1 where the module is not known."""
    if isinstance(module, _INPUTS_FIRST) or type(module).__name__ == "Conv1D":  # of transformers
        return 0
    return 1
