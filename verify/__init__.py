"""The court: cases, witnesses, references, verdicts."""
