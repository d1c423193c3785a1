"""GSM8K smoke test: ask a few questions, score as two known evaluations do, compare two runs."""
