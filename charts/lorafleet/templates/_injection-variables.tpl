{{- /* What policy and checks know of a pod, as CEL. */ -}}

{{- /* The pod that a request is about: itself, or the template of a workload. */ -}}
{{- define "lorafleet.podOf" -}}
(request.kind.kind == 'Pod' ? object : request.kind.kind == 'LeaderWorkerSet'
  ? object.spec.leaderWorkerTemplate.?leaderTemplate.orValue(object.spec.leaderWorkerTemplate.workerTemplate)
  : object.spec.template)
{{- end }}

{{- /* Whether a pod, given as an expression, is to be an engine of a pool. */ -}}
{{- define "lorafleet.isWanted" -}}
{{ . }}.?metadata.?labels.orValue({}).exists(l, l == 'lorafleet.dev/engine-pool')
&& {{ . }}.?metadata.?labels[?'lorafleet.dev/inject'].orValue('') != 'false'
{{- end }}

{{- /* Whether it has no sidecar yet, of the snippet or of its own. */ -}}
{{- define "lorafleet.isBare" -}}
!({{ . }}.spec.?initContainers.orValue([]) + {{ . }}.spec.containers)
  .exists(c, c.?env.orValue([]).exists(e, e.name == 'LORAFLEET_ARENA_BYTES'))
{{- end }}

{{- /* Takes root, and pod as an expression. */ -}}
{{- define "lorafleet.podVariables" -}}
- name: pod
  expression: |-
    {{- .pod | nindent 4 }}
- name: pool
  expression: variables.pod.metadata.labels['lorafleet.dev/engine-pool']
- name: notes
  expression: variables.pod.?metadata.?annotations.orValue({})
- name: containers
  expression: variables.pod.spec.containers
# Which container runs vLLM: the one that is named, the only one, else the only one with vLLM's command,
# its image or its name. Empty for none and for several.
- name: named
  expression: variables.notes[?'lorafleet.dev/engine-container'].orValue('')
- name: byCommand
  expression: >-
    variables.containers.filter(c, (c.?command.orValue([]) + c.?args.orValue([])).join(' ')
    .matches('vllm[ \n\\\\]+serve|vllm[.]entrypoints')).map(c, c.name)
- name: byImage
  expression: variables.containers.filter(c, c.?image.orValue('').matches('(^|[/_-])vllm([-_:@/]|$)')).map(c, c.name)
- name: byName
  expression: variables.containers.filter(c, c.name.matches('^vllm|^kserve-container$')).map(c, c.name)
- name: engines
  expression: >-
    variables.named != '' ? variables.containers.filter(c, c.name == variables.named).map(c, c.name)
    : size(variables.containers) == 1 ? [variables.containers[0].name]
    : size(variables.byCommand) == 1 ? variables.byCommand
    : size(variables.byImage) == 1 ? variables.byImage
    : size(variables.byName) == 1 ? variables.byName : []
- name: engine
  expression: variables.containers.filter(c, variables.engines.exists(e, e == c.name))[0]
- name: env
  expression: variables.engine.?env.orValue([])
# All that vLLM's flags may stand in: the command, and what variables of it say literally.
- name: text
  expression: >-
    (variables.engine.?command.orValue([]) + variables.engine.?args.orValue([])
    + variables.env.map(e, e.?value.orValue(''))).join(' ')
# Whether the text is vLLM's whole command line, with nothing that is found only in the container.
- name: seenWhole
  expression: >-
    !variables.text.contains('$') && !variables.text.contains('--config') && (
    variables.text.matches('vllm[ \n\\\\]+serve|vllm[.]entrypoints')
    || !has(variables.engine.command) && variables.engine.?image.orValue('').matches('/vllm-openai([-_:@]|$)'))
- name: hasLora
  expression: variables.text.matches('--enable[-_]lora')
# Names of ours that the pod has given to something else: with two of one name it could not be made.
- name: taken
  expression: >-
    (variables.pod.spec.?initContainers.orValue([]) + variables.containers).map(c, c.name).filter(n, n == 'lorafleet-sidecar')
    + variables.pod.spec.?volumes.orValue([]).map(v, v.name)
    .filter(n, n in ['lorafleet-memory', 'lorafleet-tls', 'lorafleet-api-key'])
- name: arenaText
  expression: >-
    variables.notes[?'lorafleet.dev/arena'].orValue(
    {{ include "lorafleet.cel" .root.Values.injection.arenas }}[?variables.pool].orValue({{ .root.Values.injection.arena | quote }}))
- name: arenaIsValid
  expression: >-
    isQuantity(variables.arenaText) && quantity(variables.arenaText).isInteger()
    && quantity(variables.arenaText).compareTo(quantity('2Mi')) >= 0
    && quantity(variables.arenaText).compareTo(quantity('1Pi')) <= 0
- name: portText
  expression: variables.notes[?'lorafleet.dev/engine-port'].orValue('')
- name: portIsValid
  expression: variables.portText == '' || variables.portText.matches('^[1-9][0-9]{0,4}$')
{{- end }}
