"""The engine that trains a network: one step of a stream, on one device or several."""
