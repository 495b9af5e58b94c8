"""What runs showed: the engine of verdicts, figures, and the pages that are made with them."""
