{{- define "ottla.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "ottla.labels" -}}
{{ include "ottla.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "ottla.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ottla.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "ottla.name" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end }}

{{- /* zookeeper.connect; empty for a single broker with its own file. */ -}}
{{- define "ottla.zookeeper" -}}
{{- if .Values.zookeeper.connect -}}
{{ .Values.zookeeper.connect }}
{{- else if .Values.zookeeper.enabled -}}
{{- $name := include "ottla.name" . -}}
{{- range $i := until (int .Values.zookeeper.replicas) -}}
{{ if $i }},{{ end }}{{ $name }}-zookeeper-{{ $i }}.{{ $name }}-zookeeper:2181
{{- end -}}
{{- end -}}
{{- end }}

{{- define "ottla.startsZookeeper" -}}
{{- if and .Values.zookeeper.enabled (not .Values.zookeeper.connect) }}yes{{ end -}}
{{- end }}

{{- define "ottla.usesTls" -}}
{{- $protocols := list .Values.client.protocol .Values.interBroker.protocol -}}
{{- if .Values.external.enabled }}{{ $protocols = append $protocols .Values.external.protocol }}{{ end -}}
{{- range $protocols }}{{ if has . (list "SSL" "SASL_SSL") }}yes{{ end }}{{ end -}}
{{- end }}

{{- /* Values that cannot work are refused here, before anything is installed. */ -}}
{{- define "ottla.check" -}}
{{- if and (gt (int .Values.replicas) 1) (not (include "ottla.zookeeper" .)) -}}
{{- fail "replicas > 1 needs zookeeper.enabled=true or zookeeper.connect" -}}
{{- end -}}
{{- if and (gt (int .Values.workers) 1) .Values.external.enabled -}}
{{- fail "external.enabled needs workers=1: each worker would need a Service of its own" -}}
{{- end -}}
{{- if and (gt (int .Values.workers) 1) (gt (int .Values.replicas) 100) -}}
{{- fail "workers > 1 needs at most 100 replicas: worker 1 of pod 0 has the broker id 100" -}}
{{- end -}}
{{- if and (include "ottla.usesTls" .) (not .Values.tls.secretName) -}}
{{- fail "a listener with SSL or SASL_SSL needs tls.secretName" -}}
{{- end -}}
{{- if .Values.external.enabled -}}
{{- if and (eq .Values.external.type "NodePort") (ne (len .Values.external.hosts) 1) (ne (len .Values.external.hosts) (int .Values.replicas)) -}}
{{- fail "external.hosts needs one host, or one for each broker" -}}
{{- end -}}
{{- if and (eq .Values.external.type "LoadBalancer") (ne (len .Values.external.hosts) (int .Values.replicas)) -}}
{{- fail "external.hosts needs one host for each broker with type LoadBalancer" -}}
{{- end -}}
{{- end -}}
{{- end }}
