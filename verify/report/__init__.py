"""What a judgement says to people and to programs."""

from gradjury.verify.report.report import Report

__all__ = ["Report"]
