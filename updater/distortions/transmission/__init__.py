"""Our perturbations by what is lost on the way."""
