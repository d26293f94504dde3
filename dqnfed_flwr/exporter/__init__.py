"""A long-lived HTTP server over the metrics files of runs, with node and run state of a SuperLink."""
