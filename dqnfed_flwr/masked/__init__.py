"""What a client gives a server that is to see no gradient: `secrets`, `sketch`, `sums`, and the rules of a `member`."""

PEERS = 3
"""Others that a client agrees with, and that take part in a sum, at least."""
MOST = 0.5
"""The share of the weights of a sum that one client has at most."""
FLOOR = 256
"""Samples that a sum is of at least for a real node, unless its site says another number."""
LIMITS = ("privacy", "epsilon", "delta", "min-samples")
"""Keys of a node config by which a site bounds the runs that its client takes part in."""
SHORT, MOST_IN_SHORT = 16, 4096
"""Bits of a word of a short sum, and over how many clients it is at most: each costs one of 2^15 levels."""
ALONG = "along"
"""The figure of a client: g_k . u_{t-1}."""
IDENTITY, PEERS_LIST = "identity.key", "peers.toml"
"""Files in the folder of a node: its private Ed25519 key, and the public ones of its peers by partition."""
