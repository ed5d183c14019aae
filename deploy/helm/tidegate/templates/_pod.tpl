{{/* The pod of a Tidegate, of a frontend, or (`shard`) of a shard. */}}
{{- define "tidegate.pod" -}}
{{- $root := .root -}}
{{- $shard := .shard -}}
{{- if include "tidegate.discovers" $root }}
serviceAccountName: {{ include "tidegate.fullname" $root }}
{{- end }}
automountServiceAccountToken: {{ include "tidegate.discovers" $root | default "false" }}
# First the Services have time to forget the pod (preStop), then requests in flight may finish (drain_timeout_s), and then
# there is some time to end. Frontends forget a shard as soon as it says that it ends.
terminationGracePeriodSeconds: {{ add (ternary 0 $root.Values.tidegate.preStopSeconds $shard) (ceil (include "tidegate.drain" $root)) 10 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: tidegate
    image: "{{ $root.Values.tidegate.image.repository }}:{{ default $root.Chart.AppVersion $root.Values.tidegate.image.tag }}"
    imagePullPolicy: {{ $root.Values.tidegate.image.pullPolicy }}
    {{- if $shard }}
    args: [serve, --config, /etc/tidegate/config/tidegate.yaml, --role, shard, --shard, $(SHARD_NUMBER)]
    {{- else if $root.Values.shards.enabled }}
    args: [serve, --config, /etc/tidegate/config/tidegate.yaml, --role, frontend]
    {{- else }}
    args: [serve, --config, /etc/tidegate/config/tidegate.yaml]
    {{- end }}
    {{- if or $shard $root.Values.tidegate.env }}
    env:
      {{- if $shard }}
      - name: SHARD_NUMBER
        valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
      {{- end }}
      {{- with $root.Values.tidegate.env }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- end }}
    ports:
      {{- if $shard }}
      - {name: links, containerPort: 8200}
      {{- else }}
      - {name: grpc, containerPort: 8101}
      - {name: http, containerPort: 8100}
      {{- end }}
      - {name: metrics, containerPort: 8102}
    {{- if $shard }}
    # It lets frontends in when it serves.
    startupProbe:
      tcpSocket: {port: links}
      periodSeconds: 2
      failureThreshold: {{ add (div (int (default 10 $root.Values.tidegate.config.startup_timeout_s)) 2) 30 }}
    readinessProbe:
      tcpSocket: {port: links}
      periodSeconds: 5
    livenessProbe:
      httpGet: {path: /metrics, port: metrics}
      periodSeconds: 10
      timeoutSeconds: 5
    {{- else }}
    lifecycle:
      preStop:
        exec: {command: [sleep, {{ $root.Values.tidegate.preStopSeconds | quote }}]}
    startupProbe:
      {{- include "tidegate.probe" (dict "root" $root "path" "/v2/health/ready") | nindent 6 }}
      periodSeconds: 2
      failureThreshold: {{ add (div (int (default 10 $root.Values.tidegate.config.startup_timeout_s)) 2) 30 }}
    readinessProbe:
      {{- include "tidegate.probe" (dict "root" $root "path" "/v2/health/ready") | nindent 6 }}
      periodSeconds: 5
    livenessProbe:
      {{- include "tidegate.probe" (dict "root" $root "path" "/v2/health/live") | nindent 6 }}
      periodSeconds: 10
      timeoutSeconds: 5
    {{- end }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    resources:
      {{- toYaml $root.Values.tidegate.resources | nindent 6 }}
    volumeMounts:
      - {name: config, mountPath: /etc/tidegate/config, readOnly: true}
      {{- if $root.Values.tidegate.profiles.configMap }}
      - {name: profiles, mountPath: /etc/tidegate/profiles, readOnly: true}
      {{- end }}
      {{- range $root.Values.tidegate.secrets }}
      - {name: secret-{{ . }}, mountPath: /etc/tidegate/secrets/{{ . }}, readOnly: true}
      {{- end }}
      {{- if $root.Values.shards.enabled }}
      - {name: links, mountPath: /etc/tidegate/links, readOnly: true}
      {{- if $root.Values.shards.links.tlsSecret }}
      - {name: links-tls, mountPath: /etc/tidegate/links-tls, readOnly: true}
      {{- end }}
      {{- end }}
      - {name: tmp, mountPath: /tmp}
volumes:
  - name: config
    configMap: {name: {{ include "tidegate.fullname" $root }}}
  {{- with $root.Values.tidegate.profiles.configMap }}
  - name: profiles
    configMap: {name: {{ . }}}
  {{- end }}
  {{- range $root.Values.tidegate.secrets }}
  - name: secret-{{ . }}
    secret: {secretName: {{ . }}, defaultMode: 0440}
  {{- end }}
  {{- if $root.Values.shards.enabled }}
  - name: links
    secret: {secretName: {{ $root.Values.shards.links.secret }}, defaultMode: 0440}
  {{- with $root.Values.shards.links.tlsSecret }}
  - name: links-tls
    secret: {secretName: {{ . }}, defaultMode: 0440}
  {{- end }}
  {{- end }}
  - name: tmp
    emptyDir: {}
{{- with $root.Values.tidegate.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tidegate.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tidegate.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
