"""The Grafana dashboards, as code: `make dashboards` writes helm/forgewatch/dashboards/*.json from it."""
