"""Linear algebra on rows and on their Gramian; knows nothing of Flower."""
