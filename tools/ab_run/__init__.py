"""Drives the arms of an ON/OFF comparison: serve, wait, warm up, bench, stop, in turns."""
