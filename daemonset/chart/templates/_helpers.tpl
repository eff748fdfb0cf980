{{- /* The names of these are Helm's for all charts of a release together: each begins with this chart's own. */ -}}

{{- define "toolkit-installer.labels" -}}
app.kubernetes.io/name: toolkit-installer
{{- end }}

{{- define "toolkit-installer.image" -}}
{{- $name := printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- with .Values.image.digest }}{{ $name = printf "%s@%s" $.Values.image.repository . }}{{ end -}}
image: {{ $name | quote }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- /* Whether the cluster is told anything of a Node. */ -}}
{{- define "toolkit-installer.tells" -}}
{{- $status := .Values.nodeStatus -}}
{{- if .Values.startupTaint.enabled }}yes
{{- else if and $status.enabled (or $status.condition $status.labels $status.events) }}yes{{ end -}}
{{- end }}

{{- /* What of a Node is changed, as the permissions call it. */ -}}
{{- define "toolkit-installer.changed" -}}
{{- $status := .Values.nodeStatus -}}
{{- if or .Values.startupTaint.enabled (and $status.enabled $status.labels) }}
- nodes
{{- end }}
{{- if and $status.enabled $status.condition }}
- nodes/status
{{- end }}
{{- end }}

{{- /* Whether the pods write anything to the API server: then a policy holds them to their own Node. */ -}}
{{- define "toolkit-installer.writes" -}}
{{- include "toolkit-installer.changed" . -}}
{{- if and .Values.nodeStatus.enabled .Values.nodeStatus.events }}events{{ end -}}
{{- end }}

{{- /* Whether the NRI plugin is served: it is a method, and may be asked for as callers of NVIDIA's own do. */ -}}
{{- define "toolkit-installer.nri" -}}
{{- if or .Values.nri.enabled (eq .Values.method "nri") }}true{{ end -}}
{{- end }}

{{- /* The RuntimeClasses that there are: with the NRI plugin no handler is registered, so that a pod with one would wait. */ -}}
{{- define "toolkit-installer.runtimeClasses" -}}
{{- if include "toolkit-installer.nri" . }}[]{{ else }}{{ toYaml (.Values.runtimeClasses | default list) }}{{ end -}}
{{- end }}

{{- /* Whether the API server is talked to at all. */ -}}
{{- define "toolkit-installer.asks" -}}
{{- if or (not .Values.installOnly) (include "toolkit-installer.tells" .) }}yes{{ end -}}
{{- end }}

{{- define "toolkit-installer.nodeSelector" -}}
{{- $selector := dict -}}
{{- with .context.Values.gpuLabels }}{{ if .enabled }}{{ $selector = dict .key .value }}{{ end }}{{ end -}}
{{- toYaml (merge $selector .base) -}}
{{- end }}

{{- define "toolkit-installer.subjects" -}}
subjects:
  - kind: ServiceAccount
    name: toolkit-installer
    namespace: {{ .Values.namespace.name | quote }}
{{- end }}

{{- /* What makes an object one that Helm creates before it uninstalls, in the order of the weights that are given. It is
deleted where all of them did what they are for. Of a Job that failed the log has to stay: no hook-failed. */ -}}
{{- define "toolkit-installer.preDelete" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- /* What OpenShift asks of a pod that sees the whole node. */ -}}
{{- define "toolkit-installer.securityContext" -}}
{{- if .Values.openshift.enabled }}
securityContext:
  seLinuxOptions:
    # Not confined: it writes to /etc, runs the node's programs and asks its systemd.
    type: spc_t
    # Without categories: files that are made with those of this project could be read by nobody else.
    level: s0
{{- end }}
{{- end }}

{{- /* The variables that a value sets, and which one. In extraEnv they would come twice, and one would be lost. */ -}}
{{- define "toolkit-installer.variables" -}}
CDI_ENABLED: cdiEnabled
CLEANUP: cleanup
DRIVER_ROOT: driverRoot
ENABLE_NRI_PLUGIN: nri.enabled
ENABLE_CDI: cdiEnabled
LOG_FORMAT: logFormat
METRICS_ADDRESS: metrics.port
NODE_CONDITION: nodeStatus.condition
NODE_EVENTS: nodeStatus.events
NODE_LABELS: nodeStatus.labels
NO_RUNTIME_CONFIG: installOnly
NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES: nri.namespaces
NRI_NAMESPACE: namespace.name
NRI_SOCKET: nri.socket
NRI_STRICT: nri.strict
NVIDIA_DRIVER_ROOT: driverRoot
NVIDIA_RUNTIME_NAME: runtimeName
NVIDIA_RUNTIME_SET_AS_DEFAULT: setAsDefault
ON_DRIFT: onDrift
RELOAD_WHEN: reloadWhen
RETAINT: startupTaint.retaint
ROOT: installDir
RUNTIME: runtime
RUNTIME_ENABLE_CDI: enableCdiInRuntime
RUNTIME_RESTART_MODE: restartMode
STARTUP_TAINT: startupTaint.taint
TOOLKIT_DEBUG: debug
TOOLKIT_INSTALL_DIR: installDir
TOOLKIT_METHOD: method
WITHOUT_GPU: withoutGpu
{{- end }}

{{- /* Whether the pods tolerate the startup taint for good, as Kubernetes compares the two. */ -}}
{{- define "toolkit-installer.toleratesTaint" -}}
{{- $taint := .Values.startupTaint.taint -}}
{{- $key := regexFind "^[^=:]+" $taint -}}
{{- $value := regexFind "=[^:]*" $taint | trimPrefix "=" -}}
{{- $effect := regexFind "[^:]+$" $taint -}}
{{- range .Values.tolerations -}}
{{- $exists := eq (.operator | default "Equal") "Exists" -}}
{{- $key_fits := or (eq (.key | default "") $key) (and $exists (not .key)) -}}
{{- $value_fits := or $exists (eq (.value | default "") $value) -}}
{{- $effect_fits := or (not .effect) (eq (.effect | default "") $effect) -}}
{{- if and $key_fits $value_fits $effect_fits (not (hasKey . "tolerationSeconds")) }}yes{{ end -}}
{{- end -}}
{{- end }}

{{- /* What no schema can say. Each message names the value. */ -}}
{{- define "toolkit-installer.check" -}}
{{- $variables := include "toolkit-installer.variables" . | fromYaml -}}
{{- $seen := list -}}
{{- range .Values.extraEnv -}}
{{- if hasKey $variables .name -}}
{{- fail (printf "extraEnv: %s has a value of its own: set %s" .name (get $variables .name)) -}}
{{- end -}}
{{- if has .name (list "DAEMONSET_NAME" "NODE_NAME" "NODE_ROOT" "READY_FILE") -}}
{{- fail (printf "extraEnv: %s is what the rest of the chart relies on, and cannot be set" .name) -}}
{{- end -}}
{{- if and (eq .name "WAIT_FOR_DRIVER") $.Values.cdiEnabled -}}
{{- fail "extraEnv: WAIT_FOR_DRIVER is set already, because of cdiEnabled" -}}
{{- end -}}
{{- if has .name $seen }}{{ fail (printf "extraEnv: %s is there twice" .name) }}{{ end -}}
{{- if and (hasKey . "value") .valueFrom -}}
{{- fail (printf "extraEnv: %s has both value and valueFrom: leave one of them out" .name) -}}
{{- end -}}
{{- $seen = append $seen .name -}}
{{- end -}}
{{- with regexFind ":[^/]*$" .Values.image.repository -}}
{{- $name := trimSuffix . $.Values.image.repository -}}
{{- fail (printf "image.repository: %s has a tag: give %s, and %s as image.tag" $.Values.image.repository $name (trimPrefix ":" . | quote)) -}}
{{- end -}}
{{- $classes := list -}}
{{- range .Values.runtimeClasses -}}
{{- if has .name $classes }}{{ fail (printf "runtimeClasses: %s is there twice" .name) }}{{ end -}}
{{- $classes = append $classes .name -}}
{{- if and (eq .handler "nvidia") (ne $.Values.runtimeName "nvidia") (not $.Values.installOnly) -}}
{{- fail (printf "runtimeClasses: %s has the handler nvidia, which no engine gets: runtimeName says %s, so say that there, too" .name $.Values.runtimeName) -}}
{{- end -}}
{{- end -}}
{{- range .Values.tolerations -}}
{{- if and (eq (.operator | default "Equal") "Exists") .value -}}
{{- fail (printf "tolerations: the operator Exists compares nothing: leave the value %s out, or give the operator Equal" .value) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.startupTaint.enabled (not (include "toolkit-installer.toleratesTaint" .)) -}}
{{- fail (printf "startupTaint.taint: %s would keep the pods away themselves: add {key: %s, operator: Exists} to tolerations" .Values.startupTaint.taint (regexFind "^[^=:]+" .Values.startupTaint.taint)) -}}
{{- end -}}
{{- with .Values.test.node -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$" .) -}}
{{- fail (printf "test.node: %s is no name of a node: kubectl get nodes lists them" (quote .)) -}}
{{- end -}}
{{- end -}}
{{- range tuple "podMonitor" "rules" "dashboard" -}}
{{- if and (get $.Values.metrics .) (not $.Values.metrics.enabled) -}}
{{- fail (printf "metrics.%s: the pods serve no metrics: set metrics.enabled, too" .) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.nri.enabled (or (eq .Values.method "cdi") (eq .Values.method "auto")) -}}
{{- fail (printf "nri.enabled: the plugin is a method of its own, and method says %s" .Values.method) -}}
{{- end -}}
{{- if and (include "toolkit-installer.nri" .) (eq .Values.runtime "docker") -}}
{{- fail "nri.enabled, method: docker asks no NRI plugin about its containers: runtime says docker" -}}
{{- end -}}
{{- if and (include "toolkit-installer.nri" .) .Values.test.gpuPod.enabled -}}
{{- fail "test.gpuPod.enabled: its pod names a RuntimeClass, and with the NRI plugin there is none" -}}
{{- end -}}
{{- if and .Values.test.gpuPod.enabled (not .Values.runtimeClasses) -}}
{{- fail "test.gpuPod.enabled: its pod names the first of runtimeClasses, and there is none" -}}
{{- end -}}
{{- $old := semverCompare "<1.30-0" .Capabilities.KubeVersion.Version -}}
{{- if and $old .Values.nodeStatus.policy (include "toolkit-installer.writes" .) -}}
{{- fail "nodeStatus.policy: Kubernetes has such policies since 1.30; values.yaml says what false means" -}}
{{- end -}}
{{- end }}
