{{/* The models, each with its defaults. */}}
{{- define "wornpath.models" -}}
{{- $models := list -}}
{{- range .Values.models -}}
{{- $models = append $models (mergeOverwrite (deepCopy $.Values.modelDefaults) .) -}}
{{- end -}}
{{- toYaml $models -}}
{{- end -}}

{{- define "wornpath.name" -}}
{{- if contains "wornpath" .Release.Name -}}{{ .Release.Name | trunc 50 }}{{- else -}}{{ printf "%s-wornpath" .Release.Name | trunc 50 }}{{- end -}}
{{- end -}}

{{- define "wornpath.selector" -}}
app.kubernetes.io/name: wornpath
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: router
{{- end -}}

{{- define "wornpath.labels" -}}
{{ include "wornpath.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Labels of the pods of a model: (dict "root" $ "model" model). */}}
{{- define "wornpath.engine.labels" -}}
{{- if .model.engines.selector -}}
{{- toYaml .model.engines.selector -}}
{{- else -}}
app.kubernetes.io/name: vllm
app.kubernetes.io/instance: {{ .root.Release.Name }}
wornpath/model: {{ .model.name }}
{{- end -}}
{{- end -}}

{{- define "wornpath.engine.name" -}}
{{ include "wornpath.name" .root }}-{{ .model.name }}
{{- end -}}

{{/* Tokens in a block of a model's engines; empty if the engines are to say it. */}}
{{- define "wornpath.engine.blockSize" -}}
{{- if .blockSize -}}{{ int .blockSize }}{{- else if .engines.create -}}16{{- end -}}
{{- end -}}

{{/* A label selector as text. */}}
{{- define "wornpath.engine.selector" -}}
{{- $terms := list -}}
{{- range $key, $value := include "wornpath.engine.labels" . | fromYaml -}}
{{- $terms = append $terms (printf "%s=%s" $key $value) -}}
{{- end -}}
{{- join "," $terms -}}
{{- end -}}

{{/* wornpath.yaml as a map. */}}
{{- define "wornpath.config" -}}
{{- $root := . -}}
{{- $tls := dict -}}
{{- $client := dict "address" "0.0.0.0:8080" -}}
{{- with .Values.tls.secret -}}
{{- $_ := set $client "tls" (dict "certificate" "/etc/wornpath-tls/tls.crt" "key" "/etc/wornpath-tls/tls.key") -}}
{{- end -}}
{{- $listen := dict "client" $client "admin" "127.0.0.1:8081" -}}
{{- if eq .Values.mode "picker" -}}
{{- $epp := dict "address" "0.0.0.0:9002" "destinations" .Values.picker.destinations -}}
{{- if eq .Values.picker.tls.kind "selfSigned" -}}
{{- $_ := set $epp "tls" "self_signed" -}}
{{- else if eq .Values.picker.tls.kind "secret" -}}
{{- $_ := set $epp "tls" (dict "certificate" "/etc/wornpath-picker-tls/tls.crt" "key" "/etc/wornpath-picker-tls/tls.key") -}}
{{- end -}}
{{- with .Values.picker.objectives -}}
{{- $_ := set $epp "objectives" . -}}
{{- end -}}
{{- $_ := set $listen "epp" $epp -}}
{{- end -}}
{{- $models := list -}}
{{- $discovery := list -}}
{{- range include "wornpath.models" . | fromYamlArray -}}
{{- $engines := .engines -}}
{{- $entry := dict "name" .model "tokenizer" (printf "/models/%s" .name) "wait_for_pod" .waitForPod -}}
{{- with include "wornpath.engine.blockSize" . -}}
{{- $_ := set $entry "block_size" (int .) -}}
{{- end -}}
{{- $models = append $models $entry -}}
{{- $source := dict "kubernetes" (dict "selector" (include "wornpath.engine.selector" (dict "root" $root "model" .)) "port" (int $engines.port)) -}}
{{- if eq $root.Values.mode "picker" -}}
{{- $source = dict "kubernetes" (dict "pool" (include "wornpath.engine.name" (dict "root" $root "model" .))) -}}
{{- end -}}
{{- $_ := set $source "model" .model -}}
{{- $_ := set $source "engine" "vllm" -}}
{{- if $engines.eventsPort -}}
{{- $_ := set $source "events" (printf "zmq://{host}:%d?replay=%d" (int $engines.eventsPort) (int $engines.replayPort)) -}}
{{- end -}}
{{- $discovery = append $discovery $source -}}
{{- end -}}
{{- $drain := dict "lame_duck" (printf "%ds" (int .Values.drain.lameDuck)) "grace" (printf "%ds" (int .Values.drain.grace)) -}}
{{- $config := dict "listen" $listen "models" $models "discovery" $discovery "drain" $drain -}}
{{- with .Values.batches -}}
{{- if eq .kind "volume" -}}
{{- $_ := set $config "batch" (dict "folder" "/var/lib/wornpath") -}}
{{- else if eq .kind "postgres" -}}
{{- $batch := dict "postgres" .postgres -}}
{{- if .secret -}}{{- $_ := set $batch "password_env" "WORNPATH_DATABASE_PASSWORD" -}}{{- end -}}
{{- $_ := set $config "batch" $batch -}}
{{- end -}}
{{- end -}}
{{- toYaml (merge (deepCopy .Values.config) $config) -}}
{{- end -}}

{{/* Stops an installation that could not work. */}}
{{- define "wornpath.check" -}}
{{- if not (has .Values.mode (list "gateway" "picker")) -}}{{ fail (printf "mode is %q; give gateway or picker" .Values.mode) }}{{- end -}}
{{- if and (eq .Values.mode "picker") (ne (len .Values.models) 1) -}}{{ fail "mode picker needs exactly one model, since an InferencePool has one picker; install the chart once for each model" }}{{- end -}}
{{- with .Values.picker -}}
{{- if not (has .failureMode (list "FailClose" "FailOpen")) -}}{{ fail (printf "picker.failureMode is %q; give FailClose or FailOpen" .failureMode) }}{{- end -}}
{{- if not (has .destinations (list "list" "one")) -}}{{ fail (printf "picker.destinations is %q; give list or one" .destinations) }}{{- end -}}
{{- if not (has .tls.kind (list "selfSigned" "secret" "none")) -}}{{ fail (printf "picker.tls.kind is %q; give selfSigned, secret or none" .tls.kind) }}{{- end -}}
{{- if and (eq .tls.kind "secret") (not .tls.secret) -}}{{ fail "picker.tls.kind secret needs picker.tls.secret, the name of a Secret of type kubernetes.io/tls" }}{{- end -}}
{{- end -}}
{{- if and .Values.route.gateway .Values.tls.secret (eq .Values.mode "gateway") -}}{{ fail "route.gateway would send plain HTTP to routers that take only TLS (tls.secret); remove tls.secret if the Gateway ends TLS, or remove route.gateway and write a route of your own with a BackendTLSPolicy" }}{{- end -}}
{{- if not .Values.models -}}{{ fail "models is empty; list at least one" }}{{- end -}}
{{- if not (has .Values.batches.kind (list "none" "volume" "postgres")) -}}{{ fail (printf "batches.kind is %q; give none, volume or postgres" .Values.batches.kind) }}{{- end -}}
{{- if and (eq .Values.batches.kind "volume") (gt (int .Values.replicas) 1) -}}{{ fail "batches.kind volume works with one router, because a folder has one user; set replicas to 1, or use postgres" }}{{- end -}}
{{- if and (eq .Values.batches.kind "postgres") (not .Values.batches.postgres) -}}{{ fail "batches.kind postgres needs batches.postgres, such as postgres://user@host:5432/name" }}{{- end -}}
{{- range include "wornpath.models" . | fromYamlArray -}}
{{- if or (not .name) (not .model) -}}{{ fail "each entry of models needs name and model" }}{{- end -}}
{{- with .autoscaling -}}
{{- if not (has .kind (list "none" "hpa" "keda")) -}}{{ fail (printf "autoscaling.kind is %q; give none, hpa or keda" .kind) }}{{- end -}}
{{- if and (eq .kind "hpa") (lt (int .min) 1) -}}{{ fail "autoscaling.min of 0 needs kind keda" }}{{- end -}}
{{- end -}}
{{- if and (eq .autoscaling.kind "keda") (lt (int .autoscaling.min) 1) (has (toString .waitForPod) (list "0s" "0")) -}}{{ fail (printf "model %s scales to zero, so its requests must wait for a pod; set waitForPod, such as 600s" .name) }}{{- end -}}
{{- if and (ne .autoscaling.kind "none") (not .engines.create) -}}{{ fail (printf "model %s: autoscaling.kind is %s, but engines.create is false, so the chart has no Deployment to scale; set autoscaling.kind to none" .name .autoscaling.kind) }}{{- end -}}
{{- if and (not .engines.create) (not .engines.selector) -}}{{ fail (printf "model %s: engines.create is false, so engines.selector must give the labels of its pods" .name) }}{{- end -}}
{{- end -}}
{{- end -}}
