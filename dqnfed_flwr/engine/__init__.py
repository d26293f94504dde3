"""Where a run happens: in this process, or under Flower."""
