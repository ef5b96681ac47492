"""Completion of words: kubectl's own protocol, and scripts for shells that call the same program.

kubectl runs `kubectl_complete-lora WORD...`, the last word being the one to complete, and reads one
candidate a line and then `:4`, for "nothing else", or `:0`, for "files too" (cobra's directives).
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from lorafleet_operator.api import names
from lorafleet_operator.kubectl import adapters, api, arguments
from lorafleet_operator.kubectl.ls import short
from lorafleet_operator.kubectl.rollback import SOURCE
from lorafleet_operator.kubectl.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_ONLY, _FILES = ":4", ":0"
_SECONDS: Final = "3s"
"""How long a person who pressed Tab waits."""


def main(words: Sequence[str] | None = None) -> int:
    """Print what the last word may become."""
    words = sys.argv[1:] if words is None else list(words)
    try:
        found, directive = candidates(list(words) or [""])
    except api.Failed:  # in the middle of a command line there is no place for errors
        found, directive = [], _ONLY
    sys.stdout.write("".join(f"{printable(each)}\n" for each in found) + f"{directive}\n")
    return 0


def candidates(words: list[str]) -> tuple[list[str], str]:
    """Return what the last of the words may become, and the directive. Raises Failed."""
    *before, word = words
    parser = arguments.parser()
    verbs: dict[str, argparse.ArgumentParser] = next(
        action.choices
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    given = _given(before, parser._option_string_actions)
    verb = next((each for each in given[""] if each in verbs), "")
    flags = (verbs[verb] if verb else parser)._option_string_actions
    last = flags.get(before[-1]) if before else None
    if last is not None and last.nargs is None:
        return _values(last, word, _given(before, flags))
    if word.startswith("-"):
        return _begin(word, sorted(flag for flag in flags if flag.startswith("--"))), _ONLY
    if not verb:
        return _begin(word, verbs), _ONLY
    given = _given(before, flags)
    places = [action for action in verbs[verb]._actions if not action.option_strings]
    filled = len(given[""]) - 1  # the first one is the verb
    return _values(places[filled], word, given) if filled < len(places) else ([], _ONLY)


def _values(
    action: argparse.Action, word: str, given: dict[str, list[str]]
) -> tuple[list[str], str]:
    """Return what the value of a flag or a place may be."""
    if action.choices is not None:
        return _begin(word, map(str, action.choices)), _ONLY
    if action.metavar in ("FILE", "DIR"):
        return [], _FILES
    ask = _ASK.get(action.dest)
    return (_begin(word, ask(given)) if ask else []), _ONLY


def _given(words: Sequence[str], flags: dict[str, argparse.Action]) -> dict[str, list[str]]:
    """Return the values of the flags among the words by their destination; places are of ""."""
    found: dict[str, list[str]] = {"": []}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        action = flags.get(name)
        if action is None:
            found[""] += [word] if not word.startswith("-") else []
        elif action.nargs is None:
            found.setdefault(action.dest, []).append(value if equals else next(rest, ""))
    return found


def _kubectl(given: dict[str, list[str]]) -> api.Kubectl:
    wanted = {flag[2:].replace("-", "_") for flag, _, _ in arguments.CLUSTER_FLAGS}
    options: dict[str, Any] = {name: values for name, values in given.items() if name in wanted}
    return api.Kubectl(arguments.cluster_flags(argparse.Namespace(**options)), _SECONDS)


def _namespace(kubectl: api.Kubectl, given: dict[str, list[str]]) -> str:
    return (given.get("namespace") or [""])[-1] or kubectl.namespace()


def _adapters(given: dict[str, list[str]]) -> list[str]:
    kubectl = _kubectl(given)
    return kubectl.names(api.path(names.ADAPTER_PLURAL, _namespace(kubectl, given)))


def _pools(given: dict[str, list[str]]) -> list[str]:
    kubectl = _kubectl(given)
    return kubectl.names(api.path(names.POOL_PLURAL, _namespace(kubectl, given)))


def _accounts(given: dict[str, list[str]]) -> list[str]:
    kubectl = _kubectl(given)
    return kubectl.names(
        f"/api/v1/namespaces/{api.named(_namespace(kubectl, given))}/serviceaccounts"
    )


def _namespaces(given: dict[str, list[str]]) -> list[str]:
    return _kubectl(given).names("/api/v1/namespaces")


def _contexts(given: dict[str, list[str]]) -> list[str]:
    return _kubectl({**given, "context": []}).contexts()


def _revisions(given: dict[str, list[str]]) -> list[str]:
    name = next(iter(given[""][1:]), "")  # the first place is the verb's
    if not name:
        return [SOURCE]
    kubectl = _kubectl(given)
    place = api.path(names.ADAPTER_PLURAL, _namespace(kubectl, given), name)
    found = adapters.revisions(kubectl.get(place))
    return [*(short(each["digest"]) for each in found if each["state"] != "given up"), SOURCE]


_ASK: Final[dict[str, Callable[[dict[str, list[str]]], list[str]]]] = {
    "name": _adapters,
    "namespace": _namespaces,
    "pool": _pools,
    "context": _contexts,
    "to": _revisions,
    "service_account": _accounts,
}


def _begin(word: str, offered: Iterable[str]) -> list[str]:
    return sorted(each for each in offered if each.startswith(word))


SCRIPTS: Final = {
    "bash": """\
# bash completion of kubectl-lora; `kubectl lora` is completed by kubectl's own script.
_kubectl_lora() {
  local line
  COMPREPLY=()
  while IFS= read -r line; do
    case $line in
      :0) type compopt >/dev/null 2>&1 && compopt -o default ;;
      :*) ;;
      *) COMPREPLY+=("$line") ;;
    esac
  done < <(kubectl_complete-lora "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _kubectl_lora kubectl-lora
""",
    "zsh": """\
#compdef kubectl-lora
# zsh completion of kubectl-lora; `kubectl lora` is completed by kubectl's own script.
_kubectl_lora() {
  local -a found
  found=("${(@f)$(kubectl_complete-lora "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  [[ ${found[-1]} == ":0" ]] && { _files; return }
  found=("${(@)found[1,-2]}")
  compadd -a found
}
if [[ ${funcstack[1]} == _kubectl_lora ]]; then _kubectl_lora; else compdef _kubectl_lora kubectl-lora; fi
""",
    "fish": """\
# fish completion of kubectl-lora; `kubectl lora` is completed by kubectl's own script.
function __kubectl_lora_complete
    set -l words (commandline -opc)
    set -e words[1]
    set -l current (commandline -ct)
    kubectl_complete-lora $words "$current" 2>/dev/null | string match -v ':*'
end
complete -c kubectl-lora -f -a '(__kubectl_lora_complete)'
""",
}
