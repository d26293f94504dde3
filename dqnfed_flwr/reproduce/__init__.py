"""Published experiments: manifests, the published figures, and ours next to them. Importing it imports no torch."""
