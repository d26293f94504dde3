"""A federation on real machines: certificates, keys, commands, checks, runs."""
