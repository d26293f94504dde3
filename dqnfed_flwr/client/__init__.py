"""The client half: what one client computes for one exchange. Importing this package imports no torch."""
