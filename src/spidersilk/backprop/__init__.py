"""Gradients at wanted coordinates only: layer rules that compute what a selection asks for, and nothing else."""

from spidersilk.backprop.context import Capture
from spidersilk.backprop.wanted import Part, Wanted

__all__ = ["Capture", "Part", "Wanted"]
