"""The one exception of the embedded servers."""

from __future__ import annotations


class DevError(Exception):
    """The embedded servers can't do what was asked; the text says what is, and what to do next."""
