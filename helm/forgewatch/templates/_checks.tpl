{{/* What a schema cannot say: values that need or exclude one another. Each line names the value. */}}

{{- define "forgewatch.checks" -}}
{{- $wrong := list }}
{{- range list "required" "env" "kafka" "scale" "deploy" "certificates" "signing" "webhooks" "secrets" "claims" "volumes" }}
{{- $wrong = concat $wrong (include (printf "forgewatch.checks.%s" .) $ | fromYamlArray) }}
{{- end }}
{{- with $wrong }}
{{- fail (printf "\n\nwrong values:\n- %s\n" (join "\n- " .)) }}
{{- end }}
{{- end }}

{{- define "forgewatch.checks.required" -}}
{{- if not .Values.image.registry }}
- "image.registry is missing: where you pushed the three images, as registry.example/media; `make images` builds them (helm/images/README.md)"
{{- end }}
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
{{- $from := list }}
{{- if .ingress.enabled }}
{{- $from = append $from "deploy.ingress.enabled is true" }}
{{- end }}
{{- if .httpRoute.enabled }}
{{- $from = append $from "deploy.httpRoute.enabled is true" }}
{{- end }}
{{- if ne .service.type "ClusterIP" }}
{{- $from = append $from (printf "deploy.service.type is %s" .service.type) }}
{{- end }}
{{- if and $from $.Values.networkPolicy.enabled (not $.Values.networkPolicy.apiFrom) }}
- "networkPolicy.apiFrom is empty: {{ first $from }}, and the policy lets nobody in from there; name the peers, such as the controller's namespace"
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

{{- define "forgewatch.checks.certificates" -}}
{{- range $name := list "objectStore" "webhooks" }}
{{- with index $.Values $name }}
{{- if and .caKey (not .secret) }}
- "{{ $name }}.caKey is {{ .caKey }}, but {{ $name }}.secret, which would hold it, is missing"
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "forgewatch.checks.webhooks" -}}
{{- if and .Values.webhooks.secret (not .Values.settings.deploy.webhook_hosts) }}
- "settings.deploy.webhook_hosts is missing: webhooks.secret names webhooks, and a host that is not listed is refused"
{{- end }}
{{- end }}

{{/* What follows asks the cluster, where there is one: `helm template` finds nothing of anything, but a list that it got is never empty. */}}
{{- define "forgewatch.cluster" -}}
{{- if lookup "v1" "ServiceAccount" .Release.Namespace "" }}yes{{ end }}
{{- end }}

{{/* The Secrets that the values name, each with the keys that it must have. */}}
{{- define "forgewatch.secrets" -}}
{{- with .Values.kafka }}
kafka.saslSecret: {{ list .saslSecret "username" "password" | toJson }}
kafka.tlsSecret: {{ concat (list .tlsSecret "ca.crt") (.clientCertificate | ternary (list "tls.crt" "tls.key" .keyPasswordKey) list) | toJson }}
{{- end }}
{{- with .Values.database }}
database.secret: {{ list .secret .memoryKey .updaterKey .deployKey .caKey | toJson }}
{{- end }}
{{- with .Values.objectStore }}
objectStore.secret: {{ list .secret "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" .caKey | toJson }}
{{- end }}
{{- with .Values.deployToken }}
deployToken.secret: {{ list .secret .key .detectorKey .updaterKey | toJson }}
{{- end }}
signing.secret: {{ list .Values.signing.secret "tls.key" "tls.crt" | toJson }}
{{- with .Values.webhooks }}
webhooks.secret: {{ list .secret "webhooks" "signing" .caKey | toJson }}
{{- end }}
{{- range $n, $name := .Values.image.pullSecrets }}
image.pullSecrets[{{ $n }}]: {{ list $name | toJson }}
{{- end }}
{{- end }}

{{/* A chart above this one may bring the Secrets itself, so they are not asked for there. */}}
{{- define "forgewatch.checks.secrets" -}}
{{- if and .Chart.IsRoot (include "forgewatch.cluster" .) }}
{{- range $value, $asked := include "forgewatch.secrets" . | fromYaml }}
{{- with first $asked }}
{{- $secret := lookup "v1" "Secret" $.Release.Namespace . }}
{{- if not $secret }}
- "{{ $value }} is {{ . }}, but the namespace {{ $.Release.Namespace }} has no such Secret"
{{- else }}
{{- range rest $asked | compact }}
{{- if not (hasKey ($secret.data | default dict) .) }}
- "{{ $value }} is {{ first $asked }}, but this Secret has no key {{ . }}"
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "forgewatch.checks.claims" -}}
{{- if and .Chart.IsRoot (include "forgewatch.cluster" .) }}
{{- range $value, $name := dict "claimCheck.existingClaim" .Values.claimCheck.existingClaim "updater.run.checkpoints.existingClaim" .Values.updater.run.checkpoints.existingClaim }}
{{- if and $name (not (lookup "v1" "PersistentVolumeClaim" $.Release.Namespace $name)) }}
- "{{ $value }} is {{ $name }}, but the namespace {{ $.Release.Namespace }} has no such PersistentVolumeClaim"
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A quantity of Kubernetes as a whole number. */}}
{{- define "forgewatch.whole" -}}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 }}
{{- mulf (regexFind "^[0-9.]+" . | float64) (index $units (regexFind "[A-Za-z]*$" .)) | float64 | printf "%.0f" }}
{{- end }}

{{/* Whether a claim, or the template of one, is another volume than the values ask for. Takes (list SPEC VALUES). */}}
{{- define "forgewatch.otherVolume" -}}
{{- $has := index . 0 }}
{{- $asked := index . 1 }}
{{- if ne (include "forgewatch.whole" $has.resources.requests.storage) (include "forgewatch.whole" (toString $asked.size)) }}
size is {{ $asked.size }}, but {{ $has.resources.requests.storage }}
{{- else if and $asked.storageClassName (ne $asked.storageClassName ($has.storageClassName | default "")) }}
storageClassName is {{ $asked.storageClassName }}, but {{ $has.storageClassName | default "the cluster's default" }}
{{- end }}
{{- end }}

{{/* Kubernetes changes no StatefulSet's volumes, and a hook changes no claim that exists: so an upgrade is refused before it did anything. */}}
{{- define "forgewatch.checks.volumes" -}}
{{- $namespace := .Release.Namespace }}
{{- $memory := include "forgewatch.name" (list . "memory") }}
{{- $other := list }}
{{- with lookup "apps/v1" "StatefulSet" $namespace $memory }}
{{- $template := (first .spec.volumeClaimTemplates).spec }}
{{- $other = append $other (include "forgewatch.otherVolume" (list $template $.Values.memory.index) | trim) }}
{{- if and $template.storageClassName (not $.Values.memory.index.storageClassName) }}
{{- $other = append $other (printf "storageClassName is empty, but %s" $template.storageClassName) }}
{{- end }}
{{- else }}
{{- range until (int .Values.memory.replicas) }}
{{- with lookup "v1" "PersistentVolumeClaim" $namespace (printf "index-%s-%d" $memory .) }}
{{- $other = append $other (include "forgewatch.otherVolume" (list .spec $.Values.memory.index) | trim) }}
{{- end }}
{{- end }}
{{- end }}
{{- with compact $other | first }}
{{- $labels := printf "app.kubernetes.io/instance=%s,app.kubernetes.io/component=memory" $.Release.Name }}
- "memory.index.{{ . }} is what the volumes of {{ $memory }} were made with, which Kubernetes cannot change. They hold a cache of the rows, so make them anew, and then upgrade or roll back again:\n\n    kubectl -n {{ $namespace }} delete statefulset,persistentvolumeclaim -l {{ $labels }}\n"
{{- end }}
{{- $checkpoints := .Values.updater.run.checkpoints }}
{{- $run := include "forgewatch.name" (list . "run") }}
{{- if not $checkpoints.existingClaim }}
{{- with lookup "v1" "PersistentVolumeClaim" $namespace $run }}
{{- with include "forgewatch.otherVolume" (list .spec $checkpoints) | trim }}
- "updater.run.checkpoints.{{ . }} is what the volume {{ $run }} was made with, which this chart never changes. While no update runs, delete it, and then upgrade again, which makes it anew:\n\n    kubectl -n {{ $namespace }} delete persistentvolumeclaim {{ $run }}\n"
{{- end }}
{{- end }}
{{- end }}
{{- end }}
