"""Update runs as Kubernetes Jobs, made of a suspended CronJob's template."""
