"""Media enters: envelopes, claim checks, sandboxed decoding, crops, Kafka in and out."""
