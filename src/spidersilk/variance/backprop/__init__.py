"""Gradients at wanted coordinates only: layer rules that compute what a selection asks for, and nothing else."""

from spidersilk.variance.backprop.context import Capture
from spidersilk.variance.backprop.wanted import Part, Wanted

__all__ = ["Capture", "Part", "Wanted"]
