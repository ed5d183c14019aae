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
{{- if eq (include "tidegate.discovers" .) "true" -}}
{{- $name := printf "%s-triton" (include "tidegate.fullname" .) -}}
{{- $service := dict "service" $name "namespace" .Release.Namespace -}}
{{- with .Values.triton.scaling -}}
{{- $_ := set $service "scaling" (merge (dict "statefulset" $name) .) -}}
{{- end -}}
{{- $tritons = dict "kubernetes" $service -}}
{{- else if and (not $tritons) .Values.triton.enabled -}}
{{- $name := printf "%s-triton" (include "tidegate.fullname" .) -}}
{{- range $number := until (int (include "tidegate.tritons" .)) -}}
{{- $tritons = append $tritons (printf "%s-%d.%s:8001" $name $number $name) -}}
{{- end -}}
{{- end -}}
{{- if not $tritons -}}
{{- fail "tritons: name at least one, or let the chart start them (triton.enabled, triton.replicas)" -}}
{{- end -}}
{{- $own := dict "listen" (dict "grpc" "0.0.0.0:8101" "http" "0.0.0.0:8100" "metrics" "0.0.0.0:8102") -}}
{{- if .Values.shards.enabled -}}
{{- $name := printf "%s-shard" (include "tidegate.fullname" .) -}}
{{- $each := int .Values.shards.tritonsPerShard -}}
{{- if ne (len $tritons) (mul $each .Values.shards.replicas | int) -}}
{{- fail "tritons: shards.replicas times shards.tritonsPerShard of them are needed" -}}
{{- end -}}
{{- $shards := list -}}
{{- range $number := until (int .Values.shards.replicas) -}}
{{- $mine := slice $tritons (mul $number $each) (mul (add1 $number) $each) -}}
{{- $shards = append $shards (dict "tritons" $mine "address" (printf "%s-%d.%s:8200" $name $number $name)) -}}
{{- end -}}
{{- $links := dict "secret_file" "/etc/tidegate/links/secret" "reconnect_timeout_s" .Values.shards.links.reconnectTimeoutSeconds -}}
{{- if .Values.shards.links.tlsSecret -}}
{{- $tls := "/etc/tidegate/links-tls" -}}
{{- $links = set $links "tls" (dict "cert" (printf "%s/tls.crt" $tls) "key" (printf "%s/tls.key" $tls) "ca" (printf "%s/ca.crt" $tls)) -}}
{{- end -}}
{{- $own = merge $own (dict "shards" $shards "frontends" 1 "shard_links" $links) -}}
{{- if .Values.shards.plan -}}
{{- $own = set $own "plan" "/etc/tidegate/config/plan.json" -}}
{{- end -}}
{{- else -}}
{{- $own = set $own "tritons" $tritons -}}
{{- end -}}
{{- if .Values.tidegate.profiles.configMap -}}
{{- $own = set $own "profiles" "/etc/tidegate/profiles/profiles.json" -}}
{{- end -}}
{{- toYaml (merge $own .Values.tidegate.config) -}}
{{- end -}}

{{/* Whether Tidegate follows the EndpointSlices of the chart's Tritons. */}}
{{- define "tidegate.discovers" -}}
{{- if and .Values.triton.enabled .Values.triton.discovery (not .Values.tritons) -}}
{{- if .Values.shards.enabled -}}
{{- fail "triton.discovery: each shard has a list of its own Tritons: leave shards.enabled or triton.discovery out" -}}
{{- end -}}
true
{{- else if .Values.triton.scaling -}}
{{- fail "triton.scaling: Tidegate scales Tritons that it discovers: set triton.discovery, or leave triton.scaling empty" -}}
{{- end -}}
{{- end -}}

{{/* How many Tritons the chart starts. */}}
{{- define "tidegate.tritons" -}}
{{- if .Values.shards.enabled }}{{ mul .Values.shards.replicas .Values.shards.tritonsPerShard }}{{ else }}{{ .Values.triton.replicas }}{{ end -}}
{{- end -}}

{{/* `drain_timeout_s`, whose default is Tidegate's own. */}}
{{- define "tidegate.drain" -}}
{{- if hasKey .Values.tidegate.config "drain_timeout_s" }}{{ .Values.tidegate.config.drain_timeout_s }}{{ else }}20{{ end -}}
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

{{/* The flag with which Triton shares memory with clients, where it is wanted and this release knows it. */}}
{{- define "tidegate.clientSharedMemory" -}}
{{- if .Values.triton.allowClientSharedMemory -}}
{{- $release := regexFind "^[0-9]{2}[.][0-9]{2}" (toString .Values.triton.image.tag) -}}
{{- if not $release -}}
{{- fail "triton.allowClientSharedMemory: triton.image.tag names no release of Triton; for 26.04 and later, add --allow-client-shm=true to triton.serverArgs instead" -}}
{{- end -}}
{{- if ge (replace "." "" $release | atoi) 2604 -}}
- --allow-client-shm=true
{{- end -}}
{{- end -}}
{{- end -}}
