"""What every process of Forgewatch runs in."""
