"""The frame of every process of Forgewatch."""
