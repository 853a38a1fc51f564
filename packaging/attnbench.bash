# SPDX-License-Identifier: MIT
# Completion of attnbench for bash: `source packaging/attnbench.bash`, or installed where bash-completion looks. The words
# come from the program itself, so that they are always those of its tables.
_attnbench() {
  local program=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=run words ahead
  [ "$COMP_CWORD" -gt 1 ] && [[ ${COMP_WORDS[1]} != -* ]] && command=${COMP_WORDS[1]}
  # Bash takes "causal=none" for three words.
  if [ "$word" = = ]; then word='' before="$before="; fi
  if [ "$before" = = ]; then before=${COMP_WORDS[COMP_CWORD - 2]}=; fi
  case ${before%=} in
    -p | --preset | -s | --suite)
      words=$("$program" list presets 2>/dev/null | awk '/^[a-z]+ +[0-9]+ cases/ { print $1 }')
      ;;
    -k | --kernel | kernel)
      words=$("$program" list kernels 2>/dev/null | awk '/^[a-z]+_[a-z0-9]+ / && !/NOT HERE/ { print $1 }')
      words="auto $words"
      ;;
    -a | --axis)
      words=$("$program" list axes 2>/dev/null | awk 'found && /^[a-z]/ { print $1 "=" } /^axis / { found = 1 }')
      compopt -o nospace 2>/dev/null
      ;;
    *)
      [ "$COMP_CWORD" -eq 1 ] && words=$("$program" --help=words 2>/dev/null)
      [ "$COMP_CWORD" -eq 1 ] && [[ $word != -* ]] || words=$("$program" "$command" --help=words 2>/dev/null)
      [ "$command" = list ] && words="$words kernels presets preset axes cases"
      if [[ $before == *= ]]; then # an axis: its words stand below its line
        words=$("$program" list axes 2>/dev/null |
          awk -v axis="${before%=}" '/^ / { if (found) { gsub(",", ""); print } } !/^ / { found = $1 == axis }')
      fi
      ;;
  esac
  ahead=${word%"${word##*,}"} # values before the last one
  mapfile -t COMPREPLY < <(compgen -W "$words" -P "$ahead" -- "${word#"$ahead"}")
}
complete -o default -F _attnbench attnbench
