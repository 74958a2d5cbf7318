"""Our perturbations by coding and resampling."""
