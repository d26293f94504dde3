"""Keys of a run: what a setting is, the groups that all methods share, and what a method declares of itself."""
