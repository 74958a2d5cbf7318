"""The networks and how they become graphs."""
