"""The scripts that shells read; they ask `mtf completion` for the words that may follow.

In bash, characters such as `=` divide what is typed into words, and a candidate replaces only the
last of them. The other shells complete the whole argument.
"""

BASH = """\
_mtf_complete() {
    local IFS=$'\\n'
    COMPREPLY=($("${COMP_WORDS[0]}" completion --line "${COMP_LINE:0:COMP_POINT}" \\
        --breaks "$COMP_WORDBREAKS" 2>/dev/null))
}
complete -o nospace -o default -F _mtf_complete mtf
"""

ZSH = """\
#compdef mtf
_mtf_complete() {
    local -a found
    found=("${(@f)$("$words[1]" completion --words \\
        "${(@Q)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null)}")
    found=(${found:#})
    if (( ! $#found )); then
        _files
        return
    fi
    compadd -Q -S '' -- ${(M)found:#*[^ ]}
    compadd -Q -- ${${(M)found:#* }% }
}
if [ "$funcstack[1]" = "_mtf" ]; then
    _mtf_complete
else
    compdef _mtf_complete mtf
fi
"""

FISH = """\
function __mtf_complete
    set -l words (commandline -opc) (commandline -ct)
    $words[1] completion --words $words[2..] 2>/dev/null | string trim --right
end
complete -c mtf -a '(__mtf_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
