"""Command line, checkouts, evidence and reports."""
