{{/* The environment of each process: what the chart decides of a room's settings, and over it what settings.ROOM says. */}}

{{- define "forgewatch.settings.process" -}}
log_format: json
metrics_host: 0.0.0.0
{{- end }}

{{- define "forgewatch.settings.ingest" -}}
{{- $kafka := .Values.kafka -}}
bootstrap_servers: {{ $kafka.bootstrapServers | quote }}
security_protocol: {{ $kafka.securityProtocol }}
{{- with $kafka.saslMechanism }}
sasl_mechanism: {{ . }}
{{- end }}
{{- if $kafka.tlsSecret }}
ssl_cafile: /etc/forgewatch/kafka/ca.crt
{{- if $kafka.clientCertificate }}
ssl_certfile: /etc/forgewatch/kafka/tls.crt
ssl_keyfile: /etc/forgewatch/kafka/tls.key
{{- end }}
{{- end }}
{{- if .Values.claimCheck.existingClaim }}
claim_check_dir: /var/lib/forgewatch/media
{{- end }}
{{- end }}

{{- define "forgewatch.settings.detector" -}}
torchserve_url: http://127.0.0.1:8080
torchserve_management_url: unix:/run/forgewatch/management.sock
model_store_dir: /var/lib/forgewatch/model-store
deploy_url: {{ include "forgewatch.deployUrl" . }}
{{- if .Values.signing.enabled }}
trusted_signers: /etc/forgewatch/signing/tls.crt
{{- end }}
{{- if .Values.credentials.trustConfigMap }}
c2pa_trust_file: /etc/forgewatch/credentials/anchors.pem
{{- end }}
metrics_port: 9101
{{- end }}

{{- define "forgewatch.settings.memory" -}}
crops_url: {{ quote .Values.objectStore.cropsUrl }}
index_path: /var/lib/forgewatch/index/index
metrics_port: 9102
{{- end }}

{{- define "forgewatch.settings.updater" -}}
deploy_url: {{ include "forgewatch.deployUrl" . }}
work_dir: /var/lib/forgewatch/work
job_template: {{ include "forgewatch.name" (list . "run") }}
metrics_port: 9103
{{- end }}

{{- define "forgewatch.settings.deploy" -}}
url: {{ include "forgewatch.deployUrl" . }}
host: 0.0.0.0
port: 8700
artifacts_url: {{ quote .Values.objectStore.artifactsUrl }}
{{- if .Values.webhooks.caKey }}
webhook_ca: /etc/forgewatch/webhooks/ca.crt
{{- end }}
cache_dir: /tmp/artifacts
metrics_port: 9104
health_urls:
  {{- range $room := list "detector" "memory" "updater" }}
  {{ $room }}: http://{{ include "forgewatch.name" (list $ $room) }}:{{ include "forgewatch.setting" (list $ $room "metrics_port") }}/metrics
  {{- end }}
{{- end }}

{{- define "forgewatch.deployUrl" -}}
http://{{ include "forgewatch.name" (list . "deploy") }}:{{ .Values.settings.deploy.port | default 8700 | int }}
{{- end }}

{{/* Where people come in from outside, if anywhere. */}}
{{- define "forgewatch.entrance" -}}
{{- $deploy := .Values.deploy }}
{{- if index .Values.settings.deploy "url" }}
{{- trimSuffix "/" .Values.settings.deploy.url }}
{{- else if $deploy.ingress.enabled }}
{{- printf "https://%s" $deploy.ingress.host }}
{{- else if and $deploy.httpRoute.enabled $deploy.httpRoute.hostnames }}
{{- printf "https://%s" (first $deploy.httpRoute.hostnames) }}
{{- end }}
{{- end }}

{{/* The address of the page, from outside or else within the cluster. */}}
{{- define "forgewatch.publicUrl" -}}
{{- include "forgewatch.entrance" . | default (printf "http://%s.%s:%s" (include "forgewatch.name" (list . "deploy")) .Release.Namespace (include "forgewatch.setting" (list . "deploy" "port"))) }}
{{- end }}

{{/* A room's settings as a YAML mapping: the chart's own under those of the values. Takes (list $ ROOM). */}}
{{- define "forgewatch.settings" -}}
{{- $own := include (printf "forgewatch.settings.%s" (index . 1)) (index . 0) | fromYaml }}
{{- range $name, $value := index (index . 0).Values.settings (index . 1) }}
{{- $_ := set $own $name $value }}
{{- end }}
{{- toYaml $own }}
{{- end }}

{{/* One setting as text. Takes (list $ ROOM NAME), and as a fourth what it is where neither the chart nor the values say. */}}
{{- define "forgewatch.setting" -}}
{{- $value := index (include "forgewatch.settings" (list (index . 0) (index . 1)) | fromYaml) (index . 2) }}
{{- include "forgewatch.text" (kindIs "invalid" $value | ternary (last .) $value) }}
{{- end }}

{{/* A value as an environment variable has it: text as it is, all else as JSON, numbers without an exponent. */}}
{{- define "forgewatch.text" -}}
{{- kindIs "string" . | ternary . (toJson .) }}
{{- end }}

{{/* Environment variables of settings. Takes (list $ ROOM…). */}}
{{- define "forgewatch.env" -}}
{{- $root := first . }}
{{- range $room := rest . }}
{{- $prefix := eq $room "process" | ternary "" (printf "%s_" (upper $room)) }}
{{- range $name, $value := include "forgewatch.settings" (list $root $room) | fromYaml }}
- name: FORGEWATCH_{{ $prefix }}{{ upper $name }}
  value: {{ include "forgewatch.text" $value | quote }}
{{- end }}
{{- end }}
{{- /* No library reports to its maker: ingest.NO_TELEMETRY. */}}
{{- $quiet := dict "ORT_DISABLE_TELEMETRY" "1" "HF_HUB_DISABLE_UPDATE_CHECK" "1" "DO_NOT_TRACK" "1" }}
{{- range $name, $value := merge $quiet $root.Values.env }}
- name: {{ quote $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{/* A setting that is a count of threads, where the values leave it open: the container's processors by its limit, else by its
     request, in whole ones. Without either it is the default. Takes (list $ ROOM NAME RESOURCES). */}}
{{- define "forgewatch.env.threads" -}}
{{- $root := index . 0 }}
{{- $room := index . 1 }}
{{- $name := index . 2 }}
{{- if not (hasKey (index $root.Values.settings $room) $name) }}
{{- $given := list }}
{{- range $bound := list "limits" "requests" }}
{{- if regexMatch "[1-9]" (dig $bound "cpu" "" (index $ 3) | toString) }}
{{- $given = append $given $bound }}
{{- end }}
{{- end }}
{{- with $given }}
- name: FORGEWATCH_{{ upper $room }}_{{ upper $name }}
  valueFrom: {resourceFieldRef: {resource: {{ first . }}.cpu, divisor: "1"}}
{{- end }}
{{- end }}
{{- end }}

{{/* A variable out of a Secret. Takes (list NAME SECRET KEY). */}}
{{- define "forgewatch.secretEnv" -}}
- name: {{ index . 0 }}
  valueFrom:
    secretKeyRef:
      name: {{ index . 1 | quote }}
      key: {{ index . 2 | quote }}
{{- end }}

{{/* How the brokers know a pod. */}}
{{- define "forgewatch.env.kafka" -}}
{{- with .Values.kafka.saslSecret }}
{{ include "forgewatch.secretEnv" (list "FORGEWATCH_INGEST_SASL_USERNAME" . "username") }}
{{ include "forgewatch.secretEnv" (list "FORGEWATCH_INGEST_SASL_PASSWORD" . "password") }}
{{- end }}
{{- with .Values.kafka.keyPasswordKey }}
{{ include "forgewatch.secretEnv" (list "FORGEWATCH_INGEST_SSL_PASSWORD" $.Values.kafka.tlsSecret .) }}
{{- end }}
{{- end }}

{{/* The databases of some rooms. Takes (list $ ROOM…). */}}
{{- define "forgewatch.env.database" -}}
{{- $database := (first .).Values.database }}
{{- range $room := rest . }}
{{ include "forgewatch.secretEnv" (list (printf "FORGEWATCH_%s_DATABASE_URL" (upper $room)) $database.secret (index $database (printf "%sKey" $room))) }}
{{- end }}
{{- end }}

{{/* The object store, by the variables that every client of S3 reads. */}}
{{- define "forgewatch.env.objectStore" -}}
{{- with .Values.objectStore }}
{{- with .endpointUrl }}
- name: AWS_ENDPOINT_URL
  value: {{ . | quote }}
{{- end }}
{{- with .region }}
- name: AWS_REGION
  value: {{ . | quote }}
{{- end }}
{{- if .caKey }}
- name: AWS_CA_BUNDLE
  value: /etc/forgewatch/object-store/ca.crt
{{- end }}
{{- with .secret }}
{{ include "forgewatch.secretEnv" (list "AWS_ACCESS_KEY_ID" . "AWS_ACCESS_KEY_ID") }}
{{ include "forgewatch.secretEnv" (list "AWS_SECRET_ACCESS_KEY" . "AWS_SECRET_ACCESS_KEY") }}
{{- end }}
{{- end }}
{{- end }}

{{/* Deploy's token. Takes (list $ ROOM) of who sends or asks for it. */}}
{{- define "forgewatch.env.token" -}}
{{- $name := eq (index . 1) "deploy" | ternary "FORGEWATCH_DEPLOY_TOKEN" (printf "FORGEWATCH_%s_DEPLOY_TOKEN" (upper (index . 1))) }}
{{- $deploy := eq (index . 1) "deploy" }}
{{- $key := $deploy | ternary "key" (printf "%sKey" (index . 1)) }}
{{- with (index . 0).Values.deployToken }}
{{ include "forgewatch.secretEnv" (list $name .secret (index . $key)) }}
{{- if $deploy }}
{{ include "forgewatch.secretEnv" (list "FORGEWATCH_DEPLOY_DETECTOR_TOKEN" .secret .detectorKey) }}
{{ include "forgewatch.secretEnv" (list "FORGEWATCH_DEPLOY_UPDATER_TOKEN" .secret .updaterKey) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Where deploy sends notices, and what it signs them with. */}}
{{- define "forgewatch.env.webhooks" -}}
{{- with .Values.webhooks.secret }}
{{ include "forgewatch.secretEnv" (list "FORGEWATCH_DEPLOY_WEBHOOKS" . "webhooks") }}
{{ include "forgewatch.secretEnv" (list "FORGEWATCH_DEPLOY_WEBHOOK_SECRET" . "signing") }}
{{- end }}
{{- end }}

{{/* What a training run signs with, and whose signature it asks of the release that it learns on from. */}}
{{- define "forgewatch.env.signing" -}}
{{- if .Values.signing.enabled }}
- name: FORGEWATCH_UPDATER_SIGNING_KEY
  value: /etc/forgewatch/signing/tls.key
- name: FORGEWATCH_DETECTOR_TRUSTED_SIGNERS
  value: {{ include "forgewatch.setting" (list . "detector" "trusted_signers") }}
{{- end }}
{{- end }}

{{/* The updater's process and its runs read the same. */}}
{{- define "forgewatch.env.updater" -}}
{{- include "forgewatch.env" (list . "process" "memory" "updater") }}
{{- include "forgewatch.env.database" (list . "memory" "updater") }}
{{- include "forgewatch.env.objectStore" . }}
{{- include "forgewatch.env.token" (list . "updater") }}
{{- end }}

{{/* The hook's two containers: one knows the databases and nothing else, the other the brokers. */}}
{{- define "forgewatch.env.migrate" -}}
{{- include "forgewatch.env" (list . "process") }}
{{- include "forgewatch.env.database" (list . "memory" "updater" "deploy") }}
{{- end }}

{{- define "forgewatch.env.topics" -}}
{{- include "forgewatch.env" (list . "process" "ingest") }}
{{- include "forgewatch.env.kafka" . }}
{{- end }}

{{/* Deploy reads every room's. */}}
{{- define "forgewatch.env.deploy" -}}
{{- include "forgewatch.env" (list . "process" "ingest" "detector" "memory" "updater" "deploy") }}
{{- include "forgewatch.env.kafka" . }}
{{- include "forgewatch.env.database" (list . "memory" "updater" "deploy") }}
{{- include "forgewatch.env.objectStore" . }}
{{- end }}
