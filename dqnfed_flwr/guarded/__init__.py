"""The guarantee around any Flower strategy and any client of the user's.

`strategy.Guaranteed` wraps the strategy on the server, `mod.guard` the train function on the clients.
"""
