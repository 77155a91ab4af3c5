{{- define "tidegate.placement" -}}
{{- with .Values }}
{{- if .affinity }}
affinity:
  {{- toYaml .affinity | nindent 2 }}
{{- else if eq .antiAffinity "preferred" }}
# Not required: two replicas on one node are better than one.
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "tidegate.selector" $ | nindent 14 }}
{{- else if eq .antiAffinity "required" }}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "tidegate.selector" $ | nindent 12 }}
{{- end }}
{{- if .zoneSpread }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "tidegate.selector" $ | nindent 8 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tidegate.volumes" -}}
- name: config
  configMap: {name: {{ quote .Release.Name }}}
{{- if .Values.tls.enabled }}
- name: tls
  secret: {secretName: {{ include "tidegate.tlsSecret" . | quote }}, defaultMode: 0440}
{{- end }}
{{- range .Values.fileSecrets }}
- name: secret-{{ . }}
  secret: {secretName: {{ quote . }}, defaultMode: 0440}
{{- end }}
{{- if eq .Values.cache.volume "emptyDir" }}
- name: cache
  emptyDir: {sizeLimit: {{ int .Values.cache.sizeGiB }}Gi}
{{- end }}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
