"""Flower ServerApp of DQN-Fed."""
