{{- /* What is put into engine pods, written once as YAML: the policy and the snippet are made of it.
Strings that begin with "cel:" stand for what the policy computes from the pod; the snippet has values there. */ -}}

{{- /* Bytes of a quantity with a whole number, as text. */ -}}
{{- define "lorafleet.bytes" -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- $unit := regexFind "[A-Za-z]*$" (toString .) }}
{{- if not (and (regexMatch "^[0-9]+[A-Za-z]*$" (toString .)) (hasKey $units $unit)) }}
{{- fail (printf "injection: %s is not a number of bytes such as 512Mi or 2Gi" (toString .)) }}
{{- end }}
{{- mul (regexFind "^[0-9]+" (toString .) | int64) (get $units $unit) }}
{{- end }}

{{- /* A value as an expression: CEL wants the elements of a list and of a map to have one type, dyn. */ -}}
{{- define "lorafleet.cel" -}}
{{- if kindIs "map" . -}}
{ {{- range $i, $key := keys . | sortAlpha }}{{ if $i }}, {{ end }}{{ $key | quote }}: dyn({{ include "lorafleet.cel" (get $ $key) }}){{ end -}} }
{{- else if kindIs "slice" . -}}
[{{ range $i, $each := . }}{{ if $i }}, {{ end }}dyn({{ include "lorafleet.cel" $each }}){{ end }}]
{{- else if and (kindIs "string" .) (hasPrefix "cel:" .) -}}
{{ trimPrefix "cel:" . }}
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end }}

{{- define "lorafleet.sidecarImage" -}}
{{ printf "%s:%s" .Values.injection.image.repository (.Values.injection.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{- /* Whether sidecars and operator prove to each other who they are. */ -}}
{{- define "lorafleet.sidecarTls" -}}
{{- if ne ((.Values.tls).mode | default "none") "none" }}true{{ end }}
{{- end }}

{{- /* The sidecar. Takes root, and arena, limit, request, url and path of one pod. */ -}}
{{- define "lorafleet.sidecar" -}}
{{- $injection := .root.Values.injection }}
{{- $settings := dict "VOLUME" .path "ARENA_BYTES" .arena "ENGINE_URL" .url "METRICS_LISTEN" "0.0.0.0:9464" }}
{{- if include "lorafleet.sidecarTls" .root }}
{{- /* Who has a certificate of the peer name, which this namespace's sidecars have, may ask to pass adapters on. */}}
{{- $settings = merge (dict "TLS_DIR" "/tls" "PEER_NAME" "$(LORAFLEET_NAMESPACE).engines.lorafleet") $settings }}
{{- else }}
{{- $settings = merge (dict "LISTEN" "0.0.0.0:7070" "ALLOW_INSECURE" "true") $settings }}
{{- end }}
{{- $settings = merge (deepCopy $injection.settings) $settings -}}
name: lorafleet-sidecar
image: {{ include "lorafleet.sidecarImage" .root | quote }}
imagePullPolicy: {{ $injection.image.pullPolicy }}
# A native sidecar: it is there before vLLM starts and until vLLM has ended.
restartPolicy: Always
command: [lorafleet-sidecar, serve]
env:
  - name: LORAFLEET_POD_UID
    valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.uid}}
  - name: LORAFLEET_NAMESPACE
    valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}
  {{- range $name, $value := $settings }}
  - name: LORAFLEET_{{ $name }}
    value: {{ $value | toString | quote }}
  {{- end }}
ports:
  - {name: lorafleet, containerPort: 7070, protocol: TCP}
  - {name: lora-metrics, containerPort: 9464, protocol: TCP}
# vLLM starts when the arena and the plugin's files are there. A large arena takes its time to allocate.
startupProbe:
  httpGet: {path: /healthz, port: 9464, scheme: HTTP}
  periodSeconds: 1
  timeoutSeconds: 1
  successThreshold: 1
  failureThreshold: 600
livenessProbe:
  httpGet: {path: /healthz, port: 9464, scheme: HTTP}
  periodSeconds: 20
  timeoutSeconds: 10
  successThreshold: 1
  failureThreshold: 6
resources:
  requests:
    cpu: {{ $injection.cpuRequest | quote }}
    memory: {{ $injection.guaranteed | ternary .limit .request | quote }}
  limits:
    {{- if $injection.guaranteed }}
    cpu: {{ $injection.cpuRequest | quote }}
    {{- end }}
    # The pages of the arena count against the container that wrote them.
    memory: {{ .limit | quote }}
securityContext: {{- toYaml $injection.securityContext | nindent 2 }}
volumeMounts:
  - {name: {{ .volume | quote }}, mountPath: {{ .path | quote }}}
  {{- if include "lorafleet.sidecarTls" .root }}
  - {name: lorafleet-tls, mountPath: /tls, readOnly: true}
  {{- end }}
{{- end }}

{{- /* The volumes. Takes root, and volume and sizeLimit of one pod. */ -}}
{{- define "lorafleet.sidecarVolumes" -}}
- name: {{ .volume | quote }}
  emptyDir: {medium: Memory, sizeLimit: {{ .sizeLimit | quote }}}
{{- if include "lorafleet.sidecarTls" .root }}
- name: lorafleet-tls
  secret: {secretName: {{ .root.Values.tls.sidecarSecret | quote }}}
{{- end }}
{{- end }}

{{- /* Bytes beside the arena: of other files on the volume, of the sidecar's limit and of its request. */ -}}
{{- define "lorafleet.volumeExtra" }}{{ include "lorafleet.bytes" "256Mi" }}{{ end }}
{{- define "lorafleet.limitExtra" }}{{ include "lorafleet.bytes" .Values.injection.memoryBesideArena.limit }}{{ end }}
{{- define "lorafleet.requestExtra" }}{{ include "lorafleet.bytes" .Values.injection.memoryBesideArena.request }}{{ end }}

{{- /* Which version of MutatingAdmissionPolicy this API server has; empty for none. */ -}}
{{- define "lorafleet.policyVersion" -}}
{{- if semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version }}v1
{{- else if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy" }}v1beta1
{{- end }}
{{- end }}
