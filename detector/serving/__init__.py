"""How a release reaches TorchServe and is asked there."""
