"""ON/OFF report: two arms of a serving benchmark, and what may be claimed of them."""
