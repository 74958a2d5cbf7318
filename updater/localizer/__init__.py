"""The network that says where a picture is forged: its data, its training, its threshold."""
