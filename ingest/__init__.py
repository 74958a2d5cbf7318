"""Media enters: envelopes, claim checks, sandboxed decoding, crops, Kafka in and out."""

import os

# By these variables libraries do not report to their makers, as ONNX Runtime does from 1.31.
NO_TELEMETRY = dict.fromkeys(("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_UPDATE_CHECK", "DO_NOT_TRACK"), "1")

# Libraries read them when they are loaded, so every package imports this one first.
os.environ.update(NO_TELEMETRY)
