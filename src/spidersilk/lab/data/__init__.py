"""The data sets: where their files are, whether they are whole, and how they are read."""
