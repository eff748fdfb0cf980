{{- define "labels" -}}
app.kubernetes.io/name: toolkit-installer
{{- end }}

{{- define "image" -}}
{{- $name := printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ $name }}{{ end -}}
{{- end }}

{{- /* Whether the API server is asked anything at all. */ -}}
{{- define "asks" -}}
{{- if not .Values.installOnly }}yes{{ end -}}
{{- end }}

{{- /* Whether anything of a Node is changed. */ -}}
{{- define "tells" -}}
{{- if or .Values.nodeStatus.enabled .Values.startupTaint.enabled }}yes{{ end -}}
{{- end }}

{{- define "nodeSelector" -}}
{{- $selector := .base -}}
{{- if .gpuLabels.enabled }}{{- $selector = merge (dict .gpuLabels.key .gpuLabels.value) $selector -}}{{- end -}}
{{- toYaml $selector -}}
{{- end }}

{{- define "subjects" -}}
subjects:
  - kind: ServiceAccount
    name: toolkit-installer
    namespace: {{ .Values.namespace.name }}
{{- end }}
