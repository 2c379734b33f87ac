#!/usr/bin/env bash
# nine_languages.sh DEMO MANYTHINGS OUT: writes OUT/xx.tsv, pairs of nine languages with English, and OUT/english.txt, their
# different English sentences. DEMO is the folder of `xrep-data get demo`, of which all pairs are taken, and MANYTHINGS one
# of Tatoeba's pairs (`manythings` of `xrep-data list`), of which every twentieth is; lines without English letters are not.
set -euo pipefail
mkdir -p "$3"
for language in de tr ja es ko it zh ru fr; do
  paste "$1/train.$language-en.$language" "$1/train.$language-en.en" > "$3/all"
  case $language in de) name=deu ;; ja) name=jpn ;; es) name=spa ;; zh) name=cmn ;; fr) name=fra ;; *) name= ;; esac
  if [[ $name ]]; then
    awk -F '\t' 'NR % 20 == 1 { print $2 "\t" $1 }' "$2/$name-eng.decontam.tsv" >> "$3/all"
  fi
  awk -F '\t' '$1 != "" && $2 ~ /[A-Za-z]/' "$3/all" > "$3/$language.tsv"
done
rm "$3/all"
cut -f 2 "$3"/??.tsv | LC_ALL=C sort -u > "$3/english.txt"
