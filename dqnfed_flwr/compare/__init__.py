"""Several methods on the same data: what to run, the processes that run it, the figures, tables and plots."""
