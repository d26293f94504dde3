"""What a person sees of a run: progress while it goes on, a table and a picture at its end."""
