"""Outer loops: batches, how long a loop lasts, and step sizes inside it."""
