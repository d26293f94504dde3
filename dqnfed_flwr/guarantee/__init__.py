"""The guarantee: what harm is, whose claims contradict each other, and who may be overruled."""
