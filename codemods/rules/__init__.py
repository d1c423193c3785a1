"""One rule a file; each registers itself when the package is walked."""
