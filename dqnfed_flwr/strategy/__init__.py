"""The Flower strategy: sample, collect, solve, probe, step, report, checkpoint."""
