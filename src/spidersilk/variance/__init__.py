"""Variance reduction: estimates of the gradient from differences at two points."""
