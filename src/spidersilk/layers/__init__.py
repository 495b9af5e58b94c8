"""How layers compute the gradient of the selected groups of their weight, and no other. A rule is a file here."""

from spidersilk.layers import convolution, embedding, linear  # noqa: F401
from spidersilk.layers.registry import Part, rule, rule_for

__all__ = ["Part", "rule", "rule_for"]
