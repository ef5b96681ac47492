{{- /* The operator's environment, for its Deployment and for what is run in its image to look after it. */ -}}
{{- define "lorafleet.environment" -}}
- name: LORAFLEET_NAMESPACES
  value: {{ join "," .Values.namespaces | quote }}
- name: LORAFLEET_SHARDS
  value: {{ .Values.shards | quote }}
- name: LORAFLEET_LEASE_NAME
  value: {{ .Release.Name | quote }}
- name: LORAFLEET_LEASE_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: LORAFLEET_IDENTITY
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- if include "lorafleet.tlsSecret" . }}
- name: LORAFLEET_TLS_DIR
  value: /tls
- name: LORAFLEET_TLS_SERVER_NAME
  value: {{ .Values.tls.serverName | quote }}
{{- end }}
{{- if .Values.volumes }}
- name: LORAFLEET_VOLUME_ROOT
  value: /volumes
{{- end }}
{{- with .Values.push }}
{{- if .enabled }}
- name: LORAFLEET_PUSH_LISTEN
  value: 0.0.0.0:9443
- name: LORAFLEET_PUSH_DIR
  value: /pushed
- name: LORAFLEET_PUSH_TLS_DIR
  value: /push-tls
- name: LORAFLEET_PUSH_AUDIENCE
  value: {{ .audience | quote }}
- name: LORAFLEET_PUSH_BYTES
  value: {{ .limits.bytes | int64 | quote }}
- name: LORAFLEET_PUSH_NAMESPACE_BYTES
  value: {{ .limits.namespaceBytes | int64 | quote }}
- name: LORAFLEET_PUSH_REVISIONS
  value: {{ .limits.revisions | quote }}
{{- end }}
{{- end }}
{{- range $name, $value := .Values.settings }}
- name: LORAFLEET_{{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "lorafleet.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "lorafleet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
