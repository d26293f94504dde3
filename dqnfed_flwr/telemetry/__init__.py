"""Events, and who listens to them."""
