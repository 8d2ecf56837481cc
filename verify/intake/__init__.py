"""Evidence as people have it: printed logs."""
