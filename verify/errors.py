"""What GradJury says when it cannot take an input."""

from __future__ import annotations


class CaseError(ValueError):
    """A case that cannot be read or contradicts itself; one line: expected, found, where, what to do."""
