{{/* What a schema cannot say: values that need or exclude one another. Each line names the value. */}}

{{- define "forgewatch.checks" -}}
{{- $wrong := list }}
{{- range list "required" "env" "kafka" "scale" "deploy" "signing" "webhooks" }}
{{- $wrong = concat $wrong (include (printf "forgewatch.checks.%s" .) $ | fromYamlArray) }}
{{- end }}
{{- with $wrong }}
{{- fail (printf "\n\nwrong values:\n- %s\n" (join "\n- " .)) }}
{{- end }}
{{- end }}

{{- define "forgewatch.checks.required" -}}
{{- if not .Values.kafka.bootstrapServers }}
- "kafka.bootstrapServers is missing: host:port of your brokers, separated by commas"
{{- end }}
{{- if not .Values.database.secret }}
- "database.secret is missing: the name of your Secret with PostgreSQL URLs under the keys memory, updater and deploy"
{{- end }}
{{- if not .Values.objectStore.cropsUrl }}
- "objectStore.cropsUrl is missing: s3://BUCKET/PREFIX"
{{- end }}
{{- if not .Values.objectStore.artifactsUrl }}
- "objectStore.artifactsUrl is missing: s3://BUCKET/PREFIX"
{{- end }}
{{- if not .Values.deployToken.secret }}
- "deployToken.secret is missing: the name of your Secret with a token under the key {{ .Values.deployToken.key }}"
{{- end }}
{{- $keys := list .Values.deployToken.key }}
{{- range $name := list "detectorKey" "updaterKey" }}
{{- $key := index $.Values.deployToken $name }}
{{- if not $key }}
- "deployToken.{{ $name }} is missing: the key of {{ eq $name "updaterKey" | ternary "the updater's" "the detectors'" }} own token in your Secret {{ $.Values.deployToken.secret }}, since no model may hold the admin's"
{{- else if has $key $keys }}
- "deployToken.{{ $name }} is {{ $key }}, which is the key of another's token: each has its own"
{{- end }}
{{- $keys = append $keys $key }}
{{- end }}
{{- end }}

{{- define "forgewatch.checks.env" -}}
{{- range $name, $_ := .Values.env }}
{{- if hasPrefix "FORGEWATCH_" $name }}
- "env.{{ $name }} is a setting: give it under settings, or by the value that decides it"
{{- else if or (hasPrefix "AWS_" $name) (eq $name "POD_NAME") }}
- "env.{{ $name }} is what the chart gives itself: see objectStore"
{{- end }}
{{- end }}
{{- end }}

{{- define "forgewatch.checks.kafka" -}}
{{- with .Values.kafka }}
{{- if hasPrefix "SASL_" .securityProtocol }}
{{- if not .saslMechanism }}
- "kafka.saslMechanism is missing: kafka.securityProtocol is {{ .securityProtocol }}"
{{- end }}
{{- if not .saslSecret }}
- "kafka.saslSecret is missing: kafka.securityProtocol is {{ .securityProtocol }}"
{{- end }}
{{- else }}
{{- if .saslMechanism }}
- "kafka.saslMechanism is {{ .saslMechanism }}, but kafka.securityProtocol is {{ .securityProtocol }}"
{{- end }}
{{- if .saslSecret }}
- "kafka.saslSecret is {{ .saslSecret }}, but kafka.securityProtocol is {{ .securityProtocol }}"
{{- end }}
{{- end }}
{{- if and .tlsSecret (not (hasSuffix "SSL" .securityProtocol)) }}
- "kafka.tlsSecret is {{ .tlsSecret }}, but kafka.securityProtocol is {{ .securityProtocol }}"
{{- end }}
{{- if and .clientCertificate (not .tlsSecret) }}
- "kafka.clientCertificate is true, but kafka.tlsSecret, which would hold it, is missing"
{{- end }}
{{- if and .keyPasswordKey (not .clientCertificate) }}
- "kafka.keyPasswordKey is {{ .keyPasswordKey }}, but kafka.clientCertificate is false"
{{- end }}
{{- end }}
{{- end }}

{{- define "forgewatch.checks.scale" -}}
{{- $partitions := int .Values.kafka.partitions }}
{{- with .Values.detector }}
{{- if .autoscaling.enabled }}
{{- if gt (int .autoscaling.maxReplicas) $partitions }}
- "detector.autoscaling.maxReplicas is {{ .autoscaling.maxReplicas }}, above kafka.partitions, {{ $partitions }}: the others would have no work"
{{- end }}
{{- if gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas) }}
- "detector.autoscaling.minReplicas is {{ .autoscaling.minReplicas }}, above detector.autoscaling.maxReplicas, {{ .autoscaling.maxReplicas }}"
{{- end }}
{{- else if gt (int .replicas) $partitions }}
- "detector.replicas is {{ .replicas }}, above kafka.partitions, {{ $partitions }}: the others would have no work"
{{- end }}
{{- end }}
{{- if gt (int .Values.memory.replicas) $partitions }}
- "memory.replicas is {{ .Values.memory.replicas }}, above kafka.partitions, {{ $partitions }}: the others would have no work"
{{- end }}
{{- end }}

{{- define "forgewatch.checks.deploy" -}}
{{- with .Values.deploy }}
{{- if .ingress.enabled }}
{{- if not .ingress.host }}
- "deploy.ingress.host is missing: deploy.ingress.enabled is true"
{{- end }}
{{- if not .ingress.tlsSecret }}
- "deploy.ingress.tlsSecret is missing: the token would go unencrypted"
{{- end }}
{{- end }}
{{- if and .httpRoute.enabled (not .httpRoute.parentRefs) }}
- "deploy.httpRoute.parentRefs is empty: deploy.httpRoute.enabled is true"
{{- end }}
{{- end }}
{{- end }}

{{- define "forgewatch.checks.signing" -}}
{{- with .Values.signing }}
{{- if and .enabled (not .secret) }}
- "signing.secret is missing: the name of your Secret with a key that signs releases and its certificate (the chart's README.md makes one), or set signing.enabled to false"
{{- else if and .secret (not .enabled) }}
- "signing.secret is {{ .secret }}, but signing.enabled is false"
{{- end }}
{{- end }}
{{- end }}

{{- define "forgewatch.checks.webhooks" -}}
{{- if and .Values.webhooks.secret (not .Values.settings.deploy.webhook_hosts) }}
- "settings.deploy.webhook_hosts is missing: webhooks.secret names webhooks, and a host that is not listed is refused"
{{- end }}
{{- end }}
