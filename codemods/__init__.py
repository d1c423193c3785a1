"""Source in, source out: finds model-local norms and rewrites them. Needs LibCST, not torch."""
