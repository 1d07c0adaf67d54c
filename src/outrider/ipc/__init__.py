"""The link: commands that share a home. One process owns it; the others are its guests, over a socket in the home."""
