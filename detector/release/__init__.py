"""A release on disk: its folder, manifest, contract, gate and reference set."""
