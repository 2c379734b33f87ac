# The other scripts source this file: `set_up EXTRA` makes a complete .venv in the repository, or ends the script with
# one line that says what to do. EXTRA is one of setup.py's extras, or empty. Afterwards the repository is the current
# folder, .venv/bin is first in PATH, and programs use one thread unless OMP_NUM_THREADS is set.
unset CDPATH
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." || exit
repository="$(pwd -P)"
venv="$repository/.venv"
made_for="$venv/.xrep-made-for" # of a .venv made here: its place once it is complete; it cannot be moved or copied
python="${PYTHON:-python3}"

stop() { echo "$0: error: $1" >&2; exit 2; }
version_of() { "$1" -c 'import sys; print(*sys.version_info[:3], sep=".")'; }

check_python() {
  local another="name another: PYTHON=python3.12 $0"
  command -v "$python" >/dev/null || stop "there is no '$python'; install Python 3.10-3.13, or $another"
  "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' ||
    stop "'$python' is $("$python" -V 2>&1), and xrep needs Python 3.10-3.13; install one, or $another"
  "$python" -c 'import venv, ensurepip' 2>/dev/null ||
    stop "'$python' comes without venv; install it (Debian, Ubuntu: apt install python3-venv), or $another"
}

# Prints why .venv has to be made; fails if the existing one can be used.
why_anew() {
  if [ ! -e "$venv" ]; then
    echo "there is none yet"
  elif ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "the one that is there does not work"
  elif [ -n "${PYTHON:-}" ] && [ "$(version_of "$python")" != "$(version_of "$venv/bin/python")" ]; then
    echo "the one that is there is of Python $(version_of "$venv/bin/python")"
  elif [ -e "$made_for" ] && [ "$(cat "$made_for")" != "$repository" ]; then
    echo "the one that is there is not finished, or was made for another folder"
  else
    return 1
  fi
}

pip_install() {
  "$venv/bin/python" -m pip install -c constraints.txt --no-input --disable-pip-version-check "$@" </dev/null ||
    stop "pip could not install xrep (see above); correct that or check the network, and run this again"
}

set_up() {
  local installed="$venv/.xrep-installed${1:+-$1}" why state
  state="$(cat setup.py pyproject.toml constraints.txt | cksum)"
  [ -z "${PYTHON:-}" ] || check_python
  if why="$(why_anew)"; then
    check_python
    [ ! -e "$venv" ] || [ -e "$made_for" ] || stop "$why, and no script made it; move $venv away and run this again"
    echo "Making .venv with Python $(version_of "$python") ($why)"
    rm -rf "$venv" && mkdir "$venv" && echo "nothing yet" >"$made_for"
    "$python" -m venv "$venv" || stop "no virtual environment could be made in $venv (see above)"
  fi
  if [ "$(cat "$installed" 2>/dev/null)" != "$state" ]; then
    echo "Installing xrep${1:+ with the extra '$1'} into .venv, as constraints.txt says (minutes the first time)"
    pip_install pip setuptools # a pip that resumes transfers, and what builds xrep
    pip_install --no-build-isolation -e ".${1:+[$1]}"
    [ ! -e "$made_for" ] || echo "$repository" >"$made_for"
    echo "$state" >"$installed"
  fi
  # More threads hardly speed up models as small as the demo's, and slow them down fourfold if another process is busy.
  export PATH="$venv/bin:$PATH" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
}
