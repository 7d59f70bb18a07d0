"""How a server comes to the sum of its devices' updates, and what it sees of each."""
