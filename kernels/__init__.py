"""Norm definitions and their providers."""
