{{- /* Names and namespaces are quoted wherever they stand: to YAML 2024, 1e3 and null are none. */ -}}

{{- /* A text as a label may have it: versions may hold a +. */ -}}
{{- define "lorafleet.label" -}}
{{ . | replace "+" "_" | trunc 63 | trimSuffix "-" | trimSuffix "_" | trimSuffix "." | quote }}
{{- end }}

{{- define "lorafleet.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ include "lorafleet.label" .Chart.AppVersion }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ include "lorafleet.label" (printf "%s-%s" .Chart.Name .Chart.Version) }}
{{- end }}

{{- define "lorafleet.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "lorafleet.account" -}}
{{ .Values.serviceAccount.name | default .Release.Name }}
{{- end }}

{{- define "lorafleet.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{- /* Name of the Secret with the operator's certificate, empty for plaintext. */ -}}
{{- define "lorafleet.tlsSecret" -}}
{{- if eq .Values.tls.mode "secret" }}{{ .Values.tls.secret }}
{{- else if ne .Values.tls.mode "none" }}{{ .Release.Name }}-tls{{ end }}
{{- end }}

{{- /* Name of the Secret with the certificate that trainers see. */ -}}
{{- define "lorafleet.pushSecret" -}}
{{ .Values.push.tls.secret | default (printf "%s-push-tls" .Release.Name) }}
{{- end }}

{{- /* The Secrets that the chart has certificates made for: a JSON list of {namespace, secret, names} under "wanted". */ -}}
{{- define "lorafleet.certificates" -}}
{{- $wanted := list (dict "namespace" .Release.Namespace "secret" (include "lorafleet.tlsSecret" .) "names" (list "operator.lorafleet")) }}
{{- if and .Values.push.enabled (not .Values.push.tls.secret) }}
{{- $service := printf "%s-push.%s.svc" .Release.Name .Release.Namespace }}
{{- $names := concat (list $service (printf "%s.cluster.local" $service)) .Values.push.tls.names }}
{{- $wanted = append $wanted (dict "namespace" .Release.Namespace "secret" (include "lorafleet.pushSecret" .) "names" $names) }}
{{- end }}
{{- range (include "lorafleet.engineNamespaces" . | fromJson).names }}
{{- $names := list (printf "%s.engines.lorafleet" .) }}
{{- with $.Values.tls.serverName | replace "{namespace}" . }}
{{- if not (or (contains "{" .) (has . $names)) }}{{ $names = prepend $names . }}{{ end }}
{{- end }}
{{- $wanted = append $wanted (dict "namespace" . "secret" $.Values.tls.sidecarSecret "names" $names) }}
{{- end }}
{{- dict "wanted" $wanted | toJson }}
{{- end }}

{{- /* Namespaces of engines, as a JSON list under "names". */ -}}
{{- define "lorafleet.engineNamespaces" -}}
{{ dict "names" (.Values.tls.engineNamespaces | default .Values.namespaces) | toJson }}
{{- end }}

{{- /* What the operator may do in a namespace that it serves; see cluster/ and handlers.py. */ -}}
{{- define "lorafleet.rules" -}}
- apiGroups: [lorafleet.dev]
  resources: [loraadapters, enginepools]
  # patch: the finalizer and the framework's annotations.
  verbs: [get, list, watch, patch]
{{- if .Values.push.enabled }}
- apiGroups: [lorafleet.dev]
  # Of trainers that push and may create them, as the API server says.
  resources: [loraadapters]
  verbs: [create]
{{- end }}
- apiGroups: [lorafleet.dev]
  resources: [adaptergrants]
  verbs: [list, watch]
- apiGroups: [lorafleet.dev]
  resources: [loraadapters/status, enginepools/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  # The condition lorafleet.dev/warm of engine pods that wait for it.
  resources: [pods/status]
  verbs: [patch]
- apiGroups: [""]
  # The Secrets that adapters name, in the adapters' own namespace. Neither list nor watch: those
  # would show every Secret there.
  resources: [secrets]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
- apiGroups: [""]
  # What leads requests to engines, for adapters and pools that ask for it (spec.routing).
  resources: [services]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, create, patch, delete]
{{- end }}

{{- /* What it asks the API server of those who push; there are no such questions in one namespace. */ -}}
{{- define "lorafleet.reviews" -}}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end }}

{{- /* What it may do in its own namespace: hold the leases of its shards; see cluster/leases.py. */ -}}
{{- define "lorafleet.leases" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  # No rule can narrow these to names.
  verbs: [list, create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ range $shard := until (int .Values.shards) }}{{ printf "%s-%d" $.Release.Name $shard | quote }}, {{ end }}]
  verbs: [update]
{{- end }}
