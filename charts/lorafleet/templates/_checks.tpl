{{- /* What the schema cannot tell: values that contradict each other, and what the cluster lacks. One line each. */ -}}
{{- define "lorafleet.checks" -}}
{{- $tls := .Values.tls }}
{{- if and (eq $tls.mode "secret") (not $tls.secret) }}
{{- fail "tls.mode is secret and tls.secret is empty: name the Secret with the operator's tls.crt, tls.key and ca.crt" }}
{{- end }}
{{- if and $tls.secret (ne $tls.mode "secret") }}
{{- fail (printf "tls.secret is %s, but tls.mode is %s: certificates come from one place; set tls.mode to secret or leave tls.secret empty" $tls.secret $tls.mode) }}
{{- end }}
{{- if and $tls.certManager.issuerRef.name (ne $tls.mode "certManager") }}
{{- fail (printf "tls.certManager.issuerRef.name is %s, but tls.mode is %s: set tls.mode to certManager or leave the name empty" $tls.certManager.issuerRef.name $tls.mode) }}
{{- end }}
{{- $namespaces := (include "lorafleet.engineNamespaces" . | fromJson).names }}
{{- range $namespaces }}
{{- if and $.Values.namespaces (not (has . $.Values.namespaces)) }}
{{- fail (printf "tls.engineNamespaces has %s, which is not in namespaces: the operator does not serve it" .) }}
{{- end }}
{{- end }}
{{- /* Whoever serves the whole cluster may look at it. Without a cluster (helm template) there is nothing to see. */}}
{{- if and (not .Values.namespaces) (lookup "v1" "Namespace" "" "default") }}
{{- range without $namespaces .Release.Namespace }}
{{- if not (lookup "v1" "Namespace" "" .) }}
{{- fail (printf "tls.engineNamespaces has %s, and the cluster has no such namespace: create it first, for the engines' certificates go there" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- if eq $tls.mode "certManager" }}
{{- if not $tls.certManager.issuerRef.name }}
{{- fail "tls.mode is certManager and tls.certManager.issuerRef.name is empty: name the issuer that signs" }}
{{- end }}
{{- if not (.Capabilities.APIVersions.Has "cert-manager.io/v1/Certificate") }}
{{- fail "tls.mode is certManager, but the cluster has no cert-manager.io/v1 Certificate: install cert-manager first (for helm template: --api-versions cert-manager.io/v1/Certificate)" }}
{{- end }}
{{- if eq $tls.certManager.issuerRef.kind "Issuer" }}
{{- range $namespaces }}
{{- if ne . $.Release.Namespace }}
{{- fail (printf "tls.certManager.issuerRef.kind is Issuer, which does not reach the engines' namespace %s: use a ClusterIssuer" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.push }}
{{- if and .enabled (not (regexMatch "^[a-z][-a-z0-9]*$" $.Release.Name)) }}
{{- fail (printf "push.enabled is true and the release is called %s, but a Service cannot be called %s-push: take a release name of letters, digits and dashes that begins with a letter" $.Release.Name $.Release.Name) }}
{{- end }}
{{- if and .enabled (gt (int $.Values.replicas) 1) }}
{{- fail (printf "push.enabled is true and replicas is %d: pushes are kept by one replica; set replicas to 1" (int $.Values.replicas)) }}
{{- end }}
{{- if and .enabled (not .tls.secret) (has $tls.mode (list "secret" "none")) }}
{{- fail (printf "push.enabled is true and tls.mode is %s: name the Secret with the certificate of the service in push.tls.secret" $tls.mode) }}
{{- end }}
{{- if and .tls.secret .tls.names }}
{{- fail (printf "push.tls.names are for a certificate that is made, but push.tls.secret is %s: leave one of them empty" .tls.secret) }}
{{- end }}
{{- if gt (int64 .limits.namespaceBytes) (int64 .limits.bytes) }}
{{- fail (printf "push.limits.namespaceBytes is %d, more than push.limits.bytes with %d" (int64 .limits.namespaceBytes) (int64 .limits.bytes)) }}
{{- end }}
{{- end }}
{{- $monitoring := "install the Prometheus operator first, or set it to false (for helm template: --api-versions monitoring.coreos.com/v1/" }}
{{- if and .Values.metrics.podMonitor.enabled (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PodMonitor")) }}
{{- fail (printf "metrics.podMonitor.enabled is true, but the cluster has no monitoring.coreos.com/v1 PodMonitor: %sPodMonitor)" $monitoring) }}
{{- end }}
{{- if and .Values.alerts.enabled (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PrometheusRule")) }}
{{- fail (printf "alerts.enabled is true, but the cluster has no monitoring.coreos.com/v1 PrometheusRule: %sPrometheusRule)" $monitoring) }}
{{- end }}
{{- range .Values.volumes }}
{{- if and $.Values.namespaces (not (has .namespace $.Values.namespaces)) }}
{{- fail (printf "volumes has a claim for %s, which is not in namespaces: no adapter there is served" .namespace) }}
{{- end }}
{{- end }}
{{- end }}
