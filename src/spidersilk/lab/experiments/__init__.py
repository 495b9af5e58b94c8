"""Plans only: which runs, in which order, and what the paper says of them."""
