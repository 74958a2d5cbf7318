"""Media becomes a verdict: network, forensic features, gate, artifact, TorchServe, worker."""

import ingest  # noqa: F401 - no library reports to its maker
