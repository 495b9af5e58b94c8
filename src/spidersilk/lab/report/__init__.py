"""What runs showed: verdicts, figures and pages."""
