"""Label Studio: tasks out to it, annotations back from it."""
