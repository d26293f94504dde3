"""Flower ClientApp of DQN-Fed."""
