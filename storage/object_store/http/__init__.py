"""What the stores that speak HTTP share: GETs over connections of our own, sessions, tokens. Read `store` first."""
