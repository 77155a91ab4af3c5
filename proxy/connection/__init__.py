"""One client connection: accepting it, its slot and its account, its frames, and what passes through untouched."""
