"""What a release is on disk: its folder, manifest, contract, gate and reference set."""
