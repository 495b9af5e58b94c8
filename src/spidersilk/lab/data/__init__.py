"""The data sets, found, checked and read."""
