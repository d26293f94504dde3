"""Published experiments: manifests, the published figures, and ours beside them. Importing it imports no torch."""
