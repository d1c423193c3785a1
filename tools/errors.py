"""The one error a user is meant to read."""

from __future__ import annotations


class UserError(Exception):
    """Bad input or a failed operation: one sentence that says what, where and what to do.

    The command line prints it without a traceback and exits with 2.
    """
