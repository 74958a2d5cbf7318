"""The network that says where a picture is forged: what it learns from, its training, its threshold."""
