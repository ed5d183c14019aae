{{- define "tidegate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (default .Chart.Name .Values.nameOverride) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (default .Chart.Name .Values.nameOverride) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tidegate.labels" -}}
{{ include "tidegate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The configuration file: what `tidegate.config` says, the Tritons, and the ports that the pod opens. */}}
{{- define "tidegate.config" -}}
{{- $tritons := .Values.tritons -}}
{{- if and (not $tritons) .Values.triton.enabled -}}
{{- $name := printf "%s-triton" (include "tidegate.fullname" .) -}}
{{- range $number := until (int .Values.triton.replicas) -}}
{{- $tritons = append $tritons (printf "%s-%d.%s:8001" $name $number $name) -}}
{{- end -}}
{{- end -}}
{{- if not $tritons -}}
{{- fail "tritons: name at least one, or let the chart start them (triton.enabled, triton.replicas)" -}}
{{- end -}}
{{- $own := dict "tritons" $tritons "listen" (dict "grpc" "0.0.0.0:8101" "http" "0.0.0.0:8100" "metrics" "0.0.0.0:8102") -}}
{{- if .Values.tidegate.profiles.configMap -}}
{{- $own = set $own "profiles" "/etc/tidegate/profiles/profiles.json" -}}
{{- end -}}
{{- toYaml (merge $own .Values.tidegate.config) -}}
{{- end -}}

{{/* `drain_s`, whose default is Tidegate's own. */}}
{{- define "tidegate.drain" -}}
{{- if hasKey .Values.tidegate.config "drain_s" }}{{ .Values.tidegate.config.drain_s }}{{ else }}20{{ end -}}
{{- end -}}

{{/* How kubelet asks: over TLS it cannot show a certificate, so then it only connects. */}}
{{- define "tidegate.probe" -}}
{{- $tls := .root.Values.tidegate.config.tls -}}
{{- if and $tls $tls.client_ca -}}
tcpSocket: {port: http}
{{- else -}}
httpGet: {path: {{ .path }}, port: http, scheme: {{ ternary "HTTPS" "HTTP" (not (empty $tls)) }}}
{{- end -}}
{{- end -}}
