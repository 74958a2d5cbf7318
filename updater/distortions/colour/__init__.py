"""Our perturbations of levels and colours."""
