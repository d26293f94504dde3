"""ClientApps that start from a process with torch already loaded.

Flower starts a process a message, and most of its time goes into loading torch and Flower itself. `run_warm` puts a
`flwr-clientapp` of ours before Flower's on the PATH of an executor: it asks a process beside the executor, the nursery,
for a fork of itself that has the libraries loaded. App code is loaded in the fork alone, from the app that the run
brought, so a run sees nothing of the runs before it.
"""

from dqnfed_flwr.deploy.warm.launch import run_warm

__all__ = ["run_warm"]
