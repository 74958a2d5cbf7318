"""Media becomes a verdict: network, forensic features, gate, artifact, TorchServe, worker."""
