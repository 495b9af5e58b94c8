"""Sparse training: fresh gradients of which only the selected coordinates move."""
