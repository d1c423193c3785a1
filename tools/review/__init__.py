"""The review page of a patch series: what it changes, what was proven, and where it applies."""
