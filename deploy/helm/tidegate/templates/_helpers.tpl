{{- define "tidegate.selector" -}}
app.kubernetes.io/name: tidegate
app.kubernetes.io/instance: {{ quote .Release.Name }}
{{- end }}

{{- define "tidegate.metadata" -}}
namespace: {{ quote .Release.Namespace }}
labels:
  {{- include "tidegate.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- /* The lowest node id: it has the first port. */ -}}
{{- define "tidegate.firstBroker" -}}
{{- $first := index .Values.brokers 0 | int }}
{{- range .Values.brokers }}{{ $first = min $first (int .) }}{{ end }}
{{- $first }}
{{- end }}

{{- define "tidegate.advertisedHost" -}}
{{- .Values.listener.advertisedHost | default (printf "%s.%s.svc" .Release.Name .Release.Namespace) }}
{{- end }}

{{- define "tidegate.tlsSecret" -}}
{{- .Values.tls.secretName | default (printf "%s-tls" .Release.Name) }}
{{- end }}

{{- define "tidegate.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary .Release.Name "" .Values.serviceAccount.create) }}
{{- end }}

{{- /* Each port that clients connect to, as NAME: NUMBER lines. */ -}}
{{- define "tidegate.ports" -}}
bootstrap: {{ .Values.listener.port | int }}
{{- if not .Values.sni.enabled }}
{{- $first := include "tidegate.firstBroker" . | int }}
{{- range .Values.brokers }}
broker-{{ int . }}: {{ add (int $.Values.listener.port) 1 (sub (int .) $first) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What the container asks for: a core for each process that serves. */ -}}
{{- define "tidegate.cpu" -}}
{{- .Values.resources.cpu | default (int .Values.workers | toString) }}
{{- end }}

{{- /* What resident memory stays below. */ -}}
{{- define "tidegate.memoryMiB" -}}
{{- $workers := int .Values.workers }}
{{- add (int .Values.memory.maxMiB) (mul 150 (ternary 1 (add $workers 1) (eq $workers 1))) }}
{{- end }}

{{- /* What values.schema.json cannot say. */ -}}
{{- define "tidegate.check" -}}
{{- with .Values }}
{{- if and .sni.enabled (not .tls.enabled) }}{{ fail "sni.enabled needs tls.enabled: the TLS server name says which broker a client wants" }}{{ end }}
{{- if and .tls.enabled (not .tls.secretName) (not .tls.issuer.name) }}{{ fail "tls.enabled needs tls.secretName or tls.issuer.name" }}{{ end }}
{{- if and .sni.gateway.className (not .sni.gateway.name) }}{{ fail "sni.gateway.className needs sni.gateway.name, the Gateway that is made" }}{{ end }}
{{- if and .sni.gateway.name (not .sni.enabled) }}{{ fail "sni.gateway.name needs sni.enabled: a port for each broker does not fit Gateway API" }}{{ end }}
{{- if and (ne .cache.volume "none") (lt (mul (int .cache.sizeGiB) 9) (mul (int .cache.diskGiB) 10)) }}{{ fail "cache.sizeGiB: too small for cache.diskGiB, which leaves a tenth of it free" }}{{ end }}
{{- if and .podMonitor.enabled .serviceMonitor.enabled }}{{ fail "serviceMonitor.enabled: podMonitor.enabled has the same pods scraped, and each would be there twice" }}{{ end }}
{{- if and .prometheusRule.enabled (not (or .podMonitor.enabled .serviceMonitor.enabled)) }}{{ fail "prometheusRule.enabled needs podMonitor or serviceMonitor: TidegateDown asks for the job that they make" }}{{ end }}
{{- range .extraEnv }}
{{- if hasPrefix "TIDEGATE_" .name }}
{{- $key := trimPrefix "TIDEGATE_" .name | lower | replace "_" "." }}
{{- if hasKey (include "tidegate.ownProperties" $ | fromYaml) $key }}{{ fail (printf "extraEnv: %s is made from the chart's other values" .name) }}{{ end }}
{{- end }}
{{- end }}
{{- $audit := toString (index .properties "audit.log" | default "stdout") }}
{{- $writable := ternary "^(stdout$|/tmp/)" "^(stdout$|/tmp/|/var/cache/tidegate/)" (eq .cache.volume "none") }}
{{- range .extraVolumeMounts }}
{{- if not .readOnly }}{{ $writable = printf "%s|^%s/" $writable (.mountPath | trimSuffix "/" | regexQuoteMeta) }}{{ end }}
{{- end }}
{{- if not (regexMatch $writable $audit) }}{{ fail (printf "properties: audit.log: %s is on the pod's read-only file system: set stdout, or a file below /var/cache/tidegate with a cache.volume" $audit) }}{{ end }}
{{- end }}
{{- range $name, $port := include "tidegate.ports" . | fromYaml }}
{{- if gt (int $port) 65535 }}{{ fail (printf "brokers: %s would have port %d: raise no id so far above the lowest, or use sni" $name (int $port)) }}{{ end }}
{{- if eq (int $port) 9464 }}{{ fail (printf "listener.port: %s would have port 9464, the admin listener's" $name) }}{{ end }}
{{- end }}
{{- end }}
