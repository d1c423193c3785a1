"""What runs inside vLLM: the per-device forward methods of the standard norms and their guards."""
