"""How layers compute the gradient of the selected groups of their weight, and no other. A rule is a file here."""

from spidersilk.sparse.layers import convolution, embedding, linear  # noqa: F401
from spidersilk.sparse.layers.registry import rule, rule_for

__all__ = ["rule", "rule_for"]
