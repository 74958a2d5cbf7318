"""ForgeryNet's four tasks on its own data, or on media of our own that lie in its layout."""
