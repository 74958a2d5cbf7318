{{/* One pod at a time: each that leaves hands its partitions over. */}}
{{- define "forgewatch.scaleDown" -}}
scaleDown:
  stabilizationWindowSeconds: {{ .Values.detector.autoscaling.scaleDownWindowS }}
  policies:
    - {type: Pods, value: 1, periodSeconds: 60}
{{- end }}
