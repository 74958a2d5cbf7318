{{/* What every pod and container has, and nothing that belongs to one component. */}}

{{/* The pod's part of Pod Security's profile "restricted", and where it runs. Takes (list $ VALUES), VALUES being the component's. */}}
{{- define "forgewatch.pod" -}}
{{- $root := index . 0 }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ quote . }}
  {{- end }}
{{- end }}
{{- /* Else a variable for each Service of the namespace, which may be FORGEWATCH_… and is no setting. */}}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  seccompProfile:
    type: RuntimeDefault
  {{- with $root.Values.podSecurityContext }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with index . 1 }}
{{- with .runtimeClassName }}
runtimeClassName: {{ quote . }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ quote . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* A container's image, its part of "restricted", and the last line of its log as the reason of its end. Takes (list $ IMAGE). */}}
{{- define "forgewatch.container" -}}
image: {{ include "forgewatch.image" . | quote }}
imagePullPolicy: {{ (index . 0).Values.image.pullPolicy }}
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* A container's resources, with its GPUs. Takes (list RESOURCES GPU); GPU may be left out. */}}
{{- define "forgewatch.resources" -}}
{{- $resources := deepCopy (first .) }}
{{- with index (append . nil) 1 }}
{{- if .count }}
{{- $_ := set $resources "limits" (set ($resources.limits | default dict) .resource .count) }}
{{- end }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{/* Probes of a process. What keeps it from its work is the text of the readiness probe's failure, so `kubectl describe` shows it. */}}
{{- define "forgewatch.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: metrics}
  # Of a pod's events a kubelet tells 25, then one in five minutes: a slow start must leave some for the readiness probe's.
  periodSeconds: 10
  failureThreshold: 12
readinessProbe:
  exec:
    command: [python, -m, ingest.process.probe, http://127.0.0.1:{{ . }}/readyz]
  periodSeconds: 10
  timeoutSeconds: 8
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}

{{/* The volumes and mounts of certificates. Takes (list $ "kafka" "database" "object-store" "webhooks" "signers" "credentials"), or some of them; "signing" has the key too. */}}
{{- define "forgewatch.certificateVolumes" -}}
{{- $values := (first .).Values }}
{{- if and (has "kafka" .) $values.kafka.tlsSecret }}
- name: kafka-tls
  secret:
    secretName: {{ quote $values.kafka.tlsSecret }}
    defaultMode: 0440
    items:
      {{- range $values.kafka.clientCertificate | ternary (list "ca.crt" "tls.crt" "tls.key") (list "ca.crt") }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- end }}
{{- if and (has "database" .) $values.database.caKey }}
- name: database-tls
  secret:
    secretName: {{ quote $values.database.secret }}
    defaultMode: 0440
    items:
      - {key: {{ quote $values.database.caKey }}, path: ca.crt}
{{- end }}
{{- range $name, $part := dict "object-store" $values.objectStore "webhooks" $values.webhooks }}
{{- if and (has $name $) $part.caKey }}
- name: {{ $name }}-tls
  secret:
    secretName: {{ quote $part.secret }}
    defaultMode: 0440
    items:
      - {key: {{ quote $part.caKey }}, path: ca.crt}
{{- end }}
{{- end }}
{{- if and (or (has "signers" .) (has "signing" .)) $values.signing.enabled }}
- name: signing
  secret:
    secretName: {{ quote $values.signing.secret }}
    defaultMode: 0440
    items:
      {{- range has "signing" . | ternary (list "tls.crt" "tls.key") (list "tls.crt") }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- end }}
{{- if and (has "credentials" .) $values.credentials.trustConfigMap }}
- name: credentials
  configMap:
    name: {{ quote $values.credentials.trustConfigMap }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{- define "forgewatch.certificateMounts" -}}
{{- $values := (first .).Values }}
{{- if and (has "kafka" .) $values.kafka.tlsSecret }}
- {name: kafka-tls, mountPath: /etc/forgewatch/kafka, readOnly: true}
{{- end }}
{{- if and (has "database" .) $values.database.caKey }}
- {name: database-tls, mountPath: /etc/forgewatch/database, readOnly: true}
{{- end }}
{{- range $name, $part := dict "object-store" $values.objectStore "webhooks" $values.webhooks }}
{{- if and (has $name $) $part.caKey }}
- {name: {{ $name }}-tls, mountPath: /etc/forgewatch/{{ $name }}, readOnly: true}
{{- end }}
{{- end }}
{{- if and (or (has "signers" .) (has "signing" .)) $values.signing.enabled }}
- {name: signing, mountPath: /etc/forgewatch/signing, readOnly: true}
{{- end }}
{{- if and (has "credentials" .) $values.credentials.trustConfigMap }}
- {name: credentials, mountPath: /etc/forgewatch/credentials, readOnly: true}
{{- end }}
{{- end }}
