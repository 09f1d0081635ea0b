{{- define "heapbpf.name" -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "heapbpf.labels" -}}
app.kubernetes.io/name: heapbpf
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "heapbpf.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "heapbpf.name" .) -}}
{{- end -}}

{{- define "heapbpf.config" -}}
{{- if and .Values.serve.enabled (regexMatch "(?m)^[ \\t]*\\[[ \\t]*serve[ \\t]*\\]" .Values.config) }}
{{- fail "config: has a section [serve], and serve.enabled adds another: use one of them" }}
{{- end }}
{{- if and .Values.push.url (regexMatch "(?m)^[ \\t]*\\[[ \\t]*push[ \\t]*\\]" .Values.config) }}
{{- fail "config: has a section [push], and push.url adds another: use one of them" }}
{{- end -}}
{{ .Values.config | trim }}
{{- if .Values.serve.enabled }}

[serve]
address = ["0.0.0.0:{{ .Values.serve.port | int }}"]
token-file = "/etc/heapbpf-serve/token"
{{- end }}
{{- if .Values.push.url }}

[push]
url = {{ .Values.push.url | quote }}
every = {{ .Values.push.every | quote }}
{{- if .Values.push.headerSecret }}
header-file = "/etc/heapbpf-push/headers"
{{- end }}
{{- end }}
{{- end -}}
