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
