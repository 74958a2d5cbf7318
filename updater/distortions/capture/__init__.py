"""Our perturbations by lens, sensor and camera."""
