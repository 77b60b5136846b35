{{- define "plimsoll.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "plimsoll.labels" -}}
app.kubernetes.io/name: plimsoll
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "plimsoll.selector" -}}
app.kubernetes.io/name: plimsoll
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "plimsoll.image" -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end }}

{{- /* The variable both programs read Redis's URL from. */ -}}
{{- define "plimsoll.redisEnv" -}}
- name: PLIMSOLL_REDIS_URL
{{- if .Values.redis.bundled }}
  value: redis://{{ include "plimsoll.name" . }}-redis.{{ .Release.Namespace }}.svc:6379
{{- else if .Values.redis.urlSecret }}
  valueFrom: {secretKeyRef: {name: {{ .Values.redis.urlSecret }}, key: url}}
{{- else }}
  value: {{ required "redis.url or redis.urlSecret is required when redis.bundled is false" .Values.redis.url | quote }}
{{- end }}
{{- end }}
