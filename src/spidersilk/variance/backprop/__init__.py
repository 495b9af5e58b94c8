"""Weight gradients of selected rows only: layer rules that compute the rows a selection asks for, and no others."""

from spidersilk.variance.backprop import layers as layers  # the import registers its rules
from spidersilk.variance.backprop.capture import Capture
from spidersilk.variance.backprop.registry import Rule, rule
from spidersilk.variance.backprop.wanted import Wanted

__all__ = ["Capture", "Rule", "Wanted", "rule"]
