"""Whether a federation left a client worse off than it would be without it, shown on data that nobody trained on."""
