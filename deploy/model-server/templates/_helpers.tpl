{{- define "name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "labels" -}}
{{ include "selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "name" .) "default" .Values.serviceAccount.create) }}
{{- end -}}

{{/* Values that contradict one another. */}}
{{- define "check" -}}
{{- $several := or (gt (int .Values.replicas) 1) .Values.autoscaling.enabled -}}
{{- if and $several (not .Values.gateway.enabled) (not .Values.models) -}}
{{- fail "models: is empty, so Airflow configures the servers by RPC, which reaches one of them: list the models, or set gateway.enabled, or replicas to 1" -}}
{{- end -}}
{{- if and $several (not .Values.gateway.enabled) .Values.capture.path -}}
{{- fail "capture.path: several servers do not capture into one folder: set gateway.enabled, or replicas to 1" -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled .Values.gateway.enabled -}}
{{- fail "autoscaling.enabled: the gateway's upstreams are listed by name: set replicas, or disable the gateway" -}}
{{- end -}}
{{- range .Values.tokens.kinds -}}
{{- if and $.Values.tokens.secret (ne . "control") (not (has "control" $.Values.tokens.kinds)) -}}
{{- fail (printf "tokens.kinds: has %s without control, which it requires" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A StatefulSet and its headless service; takes root, suffix, replicas, resources, and flags of the role. */}}
{{- define "servers" -}}
{{- $values := .root.Values -}}
{{- $name := printf "%s%s" (include "name" .root) .suffix -}}
{{- $role := ternary "gateway" "server" (eq .suffix "-gateway") -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}-pods
  labels: {{- include "labels" .root | nindent 4 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true  # the gateway sees for itself which of them answer
  selector:
    {{- include "selector" .root | nindent 4 }}
    app.kubernetes.io/component: {{ $role }}
  ports:
    - {name: grpc, port: 8500, targetPort: grpc}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  labels: {{- include "labels" .root | nindent 4 }}
spec:
  serviceName: {{ $name }}-pods
  podManagementPolicy: Parallel
  {{- if .replicas }}
  replicas: {{ .replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ $role }}
  template:
    metadata:
      labels:
        {{- include "labels" .root | nindent 8 }}
        app.kubernetes.io/component: {{ $role }}
        {{- with $values.podLabels }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- with $values.podAnnotations }}
      annotations: {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ include "serviceAccount" .root }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ add $values.drainDelaySeconds $values.drainSeconds 15 }}
      securityContext: {{- toYaml $values.podSecurityContext | nindent 8 }}
      {{- range $field := list "imagePullSecrets" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" }}
      {{- with index $values $field }}
      {{ $field }}: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- end }}
      {{- $container := dict "image" (printf "%s:%s" $values.image.repository (toString $values.image.tag)) "imagePullPolicy" $values.image.pullPolicy "securityContext" $values.securityContext }}
      {{- if not $values.models }}
      initContainers:
        - name: config
          {{- toYaml $container | nindent 10 }}
          command: [sh, -c, "[ -e /var/lib/hops/models.config ] || echo 'model_config_list {}' >/var/lib/hops/models.config"]
          volumeMounts:
            - {name: state, mountPath: /var/lib/hops}
      {{- end }}
      containers:
        - name: model-server
          {{- toYaml $container | nindent 10 }}
          args:
            - --host=0.0.0.0
            - --port=8500
            - --rest_api_port=8501
            - --monitoring_config_file=/etc/hops/config/monitoring.config
            - --model_cache_path=/var/lib/hops/models
            - --first_load_timeout_seconds={{ $values.startSeconds }}
            - --drain_delay_seconds={{ $values.drainDelaySeconds }}
            - --drain_seconds={{ $values.drainSeconds }}
            {{- if $values.models }}
            - --model_config_file=/etc/hops/config/models.config
            - --model_config_file_poll_wait_seconds=5
            {{- else }}
            - --model_config_file=/var/lib/hops/models.config
            - --write_back_model_config
            {{- end }}
            {{- if $values.tokens.secret }}
            {{- range $values.tokens.kinds }}
            - --{{ . }}_token_file=/etc/hops/tokens/{{ . }}
            {{- end }}
            {{- end }}
            {{- if $values.tls.secret }}
            - --ssl_config_file=/etc/hops/tls/ssl.config
            - --rest_api_enable_ssl
            {{- end }}
            {{- range .flags }}
            - {{ . }}
            {{- end }}
            {{- range $flag, $value := $values.flags }}
            - {{ printf "--%s=%v" $flag $value | quote }}
            {{- end }}
          env:
            - {name: HOME, value: /tmp}
            {{- with $values.storage.env }}{{ toYaml . | nindent 12 }}{{ end }}
          {{- with $values.storage.secret }}
          envFrom:
            - secretRef: {name: {{ . }}}
          {{- end }}
          ports:
            - {name: grpc, containerPort: 8500}
            - {name: rest, containerPort: 8501}
          {{- $scheme := ternary "HTTPS" "HTTP" (not (empty $values.tls.secret)) }}
          startupProbe:  # the ports open once the models have loaded
            httpGet: {path: /readyz, port: rest, scheme: {{ $scheme }}}
            periodSeconds: 5
            failureThreshold: {{ add 12 (div (int $values.startSeconds) 5) }}
          livenessProbe:
            httpGet: {path: /healthz, port: rest, scheme: {{ $scheme }}}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /readyz, port: rest, scheme: {{ $scheme }}}
            periodSeconds: 2
            timeoutSeconds: 2
            failureThreshold: 2
          resources: {{- toYaml .resources | nindent 12 }}
          volumeMounts:
            - {name: config, mountPath: /etc/hops/config, readOnly: true}
            - {name: state, mountPath: /var/lib/hops}
            - {name: tmp, mountPath: /tmp}
            {{- if $values.tokens.secret }}
            - {name: tokens, mountPath: /etc/hops/tokens, readOnly: true}
            {{- end }}
            {{- if $values.tls.secret }}
            - {name: tls, mountPath: /etc/hops/tls, readOnly: true}
            {{- end }}
            {{- with $values.volumeMounts }}{{ toYaml . | nindent 12 }}{{ end }}
      volumes:
        - name: config
          configMap: {name: {{ include "name" .root }}}
        - name: tmp
          emptyDir: {}
        {{- if not $values.persistence.enabled }}
        - name: state
          emptyDir: {}
        {{- end }}
        {{- with $values.tokens.secret }}
        - name: tokens
          secret: {secretName: {{ . }}}
        {{- end }}
        {{- with $values.tls.secret }}
        - name: tls
          secret: {secretName: {{ . }}}
        {{- end }}
        {{- with $values.volumes }}{{ toYaml . | nindent 8 }}{{ end }}
  {{- if $values.persistence.enabled }}
  volumeClaimTemplates:
    - metadata: {name: state}
      spec:
        accessModes: [ReadWriteOnce]
        {{- with $values.persistence.storageClass }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests: {storage: {{ $values.persistence.size }}}
  {{- end }}
{{- end -}}

{{/* Flags of the one server that clients ask. */}}
{{- define "front" -}}
{{- $flags := list "--traffic_config_file=/var/lib/hops/traffic.json" -}}
{{- with .Values.capture -}}
{{- if .path -}}
{{- $flags = concat $flags (list (printf "--capture_base_path=%s" .path) "--capture_spool_path=/var/lib/hops/spool" (printf "--capture_sampling_percent=%v" .samplingPercent)) -}}
{{- end -}}
{{- end -}}
{{- toJson $flags -}}
{{- end -}}
