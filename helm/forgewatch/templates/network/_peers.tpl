{{/* Rules of network policies. An empty list of peers would be nobody, a missing one is everybody; so each rule names its peers. */}}

{{/* Egress to peers of the values at some ports; where they name none, to private addresses. Takes (list PEERS PORT…). */}}
{{- define "forgewatch.egress" -}}
- ports:
    {{- range rest . }}
    - {protocol: TCP, port: {{ int . }}}
    {{- end }}
  to:
    {{- first . | default (include "forgewatch.private" . | fromYamlArray) | toYaml | nindent 4 }}
{{- end }}

{{/* RFC 1918, RFC 6598 and RFC 4193: what a cluster, its nodes and their network have. */}}
{{- define "forgewatch.private" -}}
- ipBlock: {cidr: 10.0.0.0/8}
- ipBlock: {cidr: 172.16.0.0/12}
- ipBlock: {cidr: 192.168.0.0/16}
- ipBlock: {cidr: 100.64.0.0/10}
- ipBlock: {cidr: "fc00::/7"}
{{- end }}

{{/* Private and public addresses, but none of the link, where clouds give a node's credentials to whoever asks. */}}
{{- define "forgewatch.everywhere" -}}
- ipBlock: {cidr: 0.0.0.0/0, except: [169.254.0.0/16]}
- ipBlock: {cidr: "::/0", except: ["fe80::/10"]}
{{- end }}

{{/* What every pod may reach: names, and what the values add. */}}
{{- define "forgewatch.egress.names" -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
  to:
    {{- .Values.networkPolicy.dnsTo | default (include "forgewatch.everywhere" . | fromYamlArray) | toYaml | nindent 4 }}
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "forgewatch.egress.kafka" -}}
{{- $ports := list }}
{{- range splitList "," .Values.kafka.bootstrapServers }}
{{- $ports = append $ports (splitList ":" . | last) }}
{{- end }}
{{ include "forgewatch.egress" (prepend (uniq $ports) .Values.networkPolicy.kafkaTo) }}
{{- end }}

{{- define "forgewatch.egress.database" -}}
{{ include "forgewatch.egress" (list .Values.networkPolicy.databaseTo .Values.database.port) }}
{{- end }}

{{- define "forgewatch.egress.objectStore" -}}
{{ include "forgewatch.egress" (list (.Values.networkPolicy.objectStoreTo | default (include "forgewatch.everywhere" . | fromYamlArray)) (include "forgewatch.port" (.Values.objectStore.endpointUrl | default "https://aws"))) }}
{{- end }}

{{/* The port of a URL. */}}
{{- define "forgewatch.port" -}}
{{- $url := urlParse . }}
{{- regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) | default (eq $url.scheme "http" | ternary "80" "443") }}
{{- end }}

{{/* Egress to a component of this release. Takes (list $ COMPONENT PORT). */}}
{{- define "forgewatch.egress.component" -}}
- ports:
    - {protocol: TCP, port: {{ index . 2 }}}
  to:
    - podSelector:
        matchLabels:
          {{- include "forgewatch.selector" . | nindent 10 }}
{{- end }}

{{/* Ingress to a port from components of this release and from peers of the values. Takes (list $ PORT PEERS COMPONENT…). */}}
{{- define "forgewatch.ingress" -}}
{{- $root := index . 0 }}
{{- if or (index . 2) (gt (len .) 3) }}
- ports:
    - {protocol: TCP, port: {{ index . 1 }}}
  from:
    {{- range slice . 3 }}
    - podSelector:
        matchLabels:
          {{- include "forgewatch.selector" (list $root .) | nindent 10 }}
    {{- end }}
    {{- with index . 2 }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
{{- end }}
