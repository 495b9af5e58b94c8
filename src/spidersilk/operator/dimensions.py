"""Along which dimension of a weight its columns are counted, which its module decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd


def group_dimension(module: nn.Module | None, weight: Tensor) -> int:
    """The dimension of `weight` along which `module` counts features or channels: inputs, or columns of a table.

    It is 1 (Linear, Conv1d to Conv3d, embeddings, modules that are not known), or 0 for a transposed convolution and
    for the Conv1D of transformers. A vector has dimension 0 alone.

    >>> linear, turned = nn.Linear(3, 2), nn.ConvTranspose1d(3, 2, 1)
    >>> group_dimension(linear, linear.weight), group_dimension(turned, turned.weight)
    (1, 0)
    """
    return 0 if weight.dim() < 2 or isinstance(module, _ConvTransposeNd) or _is_conv1d(module) else 1


def _is_conv1d(module: nn.Module | None) -> bool:
    """Whether it is transformers' Conv1D, a linear layer with a weight of shape (inputs, outputs)."""
    return any(
        kind.__name__ == "Conv1D" and kind.__module__.partition(".")[0] == "transformers"
        for kind in type(module).__mro__
    )


def group_dimensions(weights: Sequence[Tensor], modules: Iterable[nn.Module]) -> list[int]:
    """`group_dimension` of each weight by the module that holds it; the lowest, where several do."""
    found: dict[int, int] = {}
    for module in modules:
        for weight in module.parameters(recurse=False):
            found[id(weight)] = min(found.get(id(weight), 1), group_dimension(module, weight))
    return [found.get(id(weight), group_dimension(None, weight)) for weight in weights]
