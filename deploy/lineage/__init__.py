"""From a verdict back to the people whose labels it rests on, and from a label on to what it taught."""
