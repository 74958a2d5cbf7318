"""The whole stack on one machine: a Kafka broker, TorchServe and the workers."""
