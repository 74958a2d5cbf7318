{{/* Names, labels and images. */}}

{{- define "forgewatch.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else if contains .Chart.Name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" (.Release.Name | trunc 29 | trimSuffix "-") .Chart.Name }}
{{- end }}
{{- end }}

{{/* The name of a component's objects. Takes (list $ COMPONENT). */}}
{{- define "forgewatch.name" -}}
{{- printf "%s-%s" (include "forgewatch.fullname" (index . 0)) (index . 1) }}
{{- end }}

{{/* What selects a component's pods. Takes (list $ COMPONENT). */}}
{{- define "forgewatch.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* The labels of a component's objects and pods. Takes (list $ COMPONENT). */}}
{{- define "forgewatch.labels" -}}
{{ include "forgewatch.selector" . }}
app.kubernetes.io/part-of: forgewatch
app.kubernetes.io/version: {{ (index . 0).Values.image.tag | default (index . 0).Chart.AppVersion | trunc 63 | trimAll "-_." | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The metadata of a component's object, its name in full. Takes (list $ COMPONENT). */}}
{{- define "forgewatch.metadata" -}}
name: {{ include "forgewatch.name" . }}
namespace: {{ (index . 0).Release.Namespace | quote }}
labels:
  {{- include "forgewatch.labels" . | nindent 2 }}
{{- end }}

{{/* An image with its tag, and its digest where one is given. Takes (list $ IMAGE). */}}
{{- define "forgewatch.image" -}}
{{- $images := (index . 0).Values.image }}
{{- $image := index $images (index . 1) }}
{{- with $images.registry }}{{ . }}/{{ end }}
{{- $image.repository }}:{{ $images.tag | default (index . 0).Chart.AppVersion }}
{{- with $image.digest }}@{{ . }}{{ end }}
{{- end }}
