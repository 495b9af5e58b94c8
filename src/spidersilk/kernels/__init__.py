"""The operations on flat vectors that dominate a step outside the gradient, one module per backend."""
