"""What speaks to a running Forgewatch: over HTTP, over Kafka, or in place of both."""
