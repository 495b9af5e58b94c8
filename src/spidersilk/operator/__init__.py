"""The random-top-k operator: what is selected, from what, by which random numbers."""
