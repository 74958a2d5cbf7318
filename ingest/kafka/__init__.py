"""Records in and out: the source, the sink, topics, access."""
