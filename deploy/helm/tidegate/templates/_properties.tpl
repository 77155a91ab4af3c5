{{- /* The file that Tidegate reads. What the pod depends on is made here, and refused among the properties. */ -}}
{{- define "tidegate.properties" -}}
{{- $own := include "tidegate.ownProperties" . | fromYaml }}
{{- range $key, $value := .Values.properties }}
{{- if or (hasKey $own $key) (regexMatch "^(proxy\\.(listen|advertised|broker|tls|workers|drain)|admin\\.listen|memory\\.max|cache\\.(path|disk))" $key) }}
{{- fail (printf "properties: %s is made from the chart's other values" $key) }}
{{- end }}
{{- if kindIs "float64" $value }}{{ $value = int64 $value }}{{ end }}
{{- if regexMatch "[^ -~]" (toString $value) }}
{{- fail (printf "properties: %s holds a line end or a character beyond ASCII: write it as \\uXXXX" $key) }}
{{- end }}
{{ $key }}={{ $value }}
{{- end }}
{{- range $key, $value := $own }}
{{ $key }}={{ $value }}
{{- end }}
{{- end }}

{{- define "tidegate.ownProperties" -}}
{{- with .Values }}
proxy.listen: "0.0.0.0:{{ int .listener.port }}"
admin.listen: "0.0.0.0:9464"
{{- if .tls.enabled }}
proxy.tls.certificate.file: /run/tidegate/tls/tls.crt
proxy.tls.key.file: /run/tidegate/tls/tls.key
{{- end }}
{{- if .sni.enabled }}
proxy.tls.sni.pattern: {{ quote .sni.brokerHost }}
proxy.advertised.port.start: "{{ int .sni.port }}"
{{- else }}
proxy.advertised.host: {{ include "tidegate.advertisedHost" $ | quote }}
proxy.advertised.port.start: "{{ add (int .listener.port) 1 }}"
proxy.broker.id.min: "{{ include "tidegate.firstBroker" $ }}"
proxy.broker.port.start: "{{ add (int .listener.port) 1 }}"
{{- end }}
{{- if gt (int .workers) 1 }}
proxy.workers: "{{ int .workers }}"
{{- end }}
proxy.drain.delay.ms: "{{ int .drain.delayMs }}"
proxy.drain.timeout.ms: "{{ int .drain.timeoutMs }}"
memory.max.bytes: "{{ int .memory.maxMiB }} MiB"
{{- if ne .cache.volume "none" }}
cache.path: /var/cache/tidegate
cache.disk.bytes: "{{ int .cache.diskGiB }} GiB"
{{- end }}
{{- end }}
{{- end }}
